//! Which memory an instruction accesses.

use crate::instruction::Space;
use crate::tree::*;

/// What is done to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    Load,
    Store,
    /// Reads, changes and writes, and gives the old value back.
    Atomic,
    /// Reads, changes and writes, and gives nothing back.
    Reduction,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryAccess {
    pub kind: AccessKind,
    pub space: Space,
    /// The code names the shared memory of any block of the cluster, `shared::cluster`.
    pub is_of_cluster: bool,
    /// What one thread accesses. `None` where a register says it, or the warp accesses a matrix together.
    pub bytes: Option<u32>,
    /// It goes on behind the instruction: a copy in the background.
    pub is_asynchronous: bool,
    /// The threads of a warp make it together, each with an address that is not of its own data alone: matrices.
    pub is_collective: bool,
    /// Which operand of the instruction is the address.
    pub operand: usize,
}

impl Instruction {
    /// The accesses to memory that it makes: a copy makes two, most instructions make none.
    ///
    /// Known are ld, ldu, st, st.async, st.bulk, atom, red, red.async, cp.async, cp.async.bulk, cp.reduce.async.bulk,
    /// ldmatrix, stmatrix, wmma.load, wmma.store, and multimem with its copies (PTX ISA, §9.7.9 "Data Movement", §9.7.13 "Parallel
    /// Synchronization and Communication", §9.7.14 "Warp Level Matrix"). Left out is what has no address of bytes:
    /// parameters, textures, surfaces, tensors, descriptors; and the objects of mbarriers.
    pub fn accesses(&self) -> Vec<MemoryAccess> {
        match self.name() {
            "ld" | "ldu" => self.one(AccessKind::Load),
            "st" => self.one(AccessKind::Store),
            "atom" => self.one(AccessKind::Atomic),
            "red" => self.one(AccessKind::Reduction),
            "cp" => self.copy(),
            "ldmatrix" => self.matrix(AccessKind::Load, Some(BYTES_OF_MATRIX_ROW)),
            "stmatrix" => self.matrix(AccessKind::Store, Some(BYTES_OF_MATRIX_ROW)),
            "wmma" if self.has("load") => self.matrix(AccessKind::Load, None),
            "wmma" if self.has("store") => self.matrix(AccessKind::Store, None),
            "multimem" => self.multimem(),
            _ => Vec::new(),
        }
    }

    fn one(&self, kind: AccessKind) -> Vec<MemoryAccess> {
        let (space, is_of_cluster) = self.spaces().next().unwrap_or((Space::Generic, false));
        let Some(operand) = self.addresses().next() else { return Vec::new() };
        if space == Space::Param {
            return Vec::new();
        }
        let bytes = if self.has("bulk") { self.constant(1) } else { self.element_bytes() };
        let is_asynchronous = self.has("async");
        vec![MemoryAccess { kind, space, is_of_cluster, bytes, is_asynchronous, is_collective: false, operand }]
    }

    fn matrix(&self, kind: AccessKind, bytes: Option<u32>) -> Vec<MemoryAccess> {
        let one = self.one(kind).into_iter();
        one.map(|access| MemoryAccess { bytes, is_collective: true, ..access }).collect()
    }

    fn multimem(&self) -> Vec<MemoryAccess> {
        match self.modifiers().next() {
            Some("ld_reduce") => self.one(AccessKind::Load),
            Some("st") => self.one(AccessKind::Store),
            Some("red") => self.one(AccessKind::Reduction),
            Some("cp") => self.copy(),
            _ => Vec::new(),
        }
    }

    /// `cp.async.ca.shared.global [to], [from], 16`, or in bulk with the bytes in a register.
    fn copy(&self) -> Vec<MemoryAccess> {
        if ["mbarrier", "prefetch", "commit_group", "wait_group", "wait_all"].iter().any(|word| self.has(word)) {
            return Vec::new();
        }
        let kind_of_target = if self.has("reduce") { AccessKind::Reduction } else { AccessKind::Store };
        let bytes = if self.has("tensor") { None } else { self.constant(2) };
        let kinds = [kind_of_target, AccessKind::Load];
        let sides = self.spaces().zip(self.addresses()).zip(kinds);
        sides
            .filter(|((_, operand), _)| !self.is_tensor(*operand))
            .map(|(((space, is_of_cluster), operand), kind)| MemoryAccess {
                kind,
                space,
                is_of_cluster,
                bytes,
                is_asynchronous: true,
                is_collective: false,
                operand,
            })
            .collect()
    }

    /// The operands that are addresses.
    fn addresses(&self) -> impl Iterator<Item = usize> {
        self.operands.iter().enumerate().filter(|(_, it)| matches!(it, Operand::Address(_))).map(|(index, _)| index)
    }

    /// `[map, {x, y}]`: a place in a tensor.
    fn is_tensor(&self, operand: usize) -> bool {
        matches!(&self.operands[operand], Operand::Address(parts) if parts.len() > 1)
    }

    fn element_bytes(&self) -> Option<u32> {
        Some(self.type_bits()?.div_ceil(8) * self.vector_width())
    }

    fn constant(&self, operand: usize) -> Option<u32> {
        match self.operands.get(operand)? {
            Operand::Expression(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// A row of an 8×8 matrix of 16-bit elements, whose address a thread gives (PTX ISA, §9.7.14.5.15 "ldmatrix").
const BYTES_OF_MATRIX_ROW: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_statements;

    fn described(text: &str) -> String {
        let statements = parse_statements(text).unwrap();
        let [Statement::Instruction(instruction)] = statements.as_slice() else { panic!("{text}") };
        let each = instruction.accesses().into_iter().map(|access| {
            let bytes = access.bytes.map_or("?".to_owned(), |bytes| bytes.to_string());
            let mut text = format!("{:?} {} {bytes} #{}", access.kind, access.space.name(), access.operand);
            text.push_str(if access.is_of_cluster { " cluster" } else { "" });
            text.push_str(if access.is_asynchronous { " async" } else { "" });
            text.push_str(if access.is_collective { " warp" } else { "" });
            text
        });
        each.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn instructions_access_what_they_say() {
        for (text, expected) in [
            ("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {a,b,c,d}, [p+16];", "Load global 16 #1"),
            ("ld.relaxed.gpu.u8 r, [p];", "Load generic 1 #1"),
            ("ld.param.u64 r, [x];", ""),
            ("ld.const.v2.b64 {a,b}, [c+8];", "Load const 16 #1"),
            ("st.shared::cluster.b32 [r], v;", "Store shared 4 #0 cluster"),
            ("st.volatile.local.v2.b32 [d], {v,w};", "Store local 8 #0"),
            (
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [a], {b,c}, [m];",
                "Store shared 8 #0 cluster async",
            ),
            ("st.bulk.weak.shared::cta [a], 64, 0;", "Store shared 64 #0"),
            ("atom.acq_rel.sys.global.cas.b128 d, [a], b, c;", "Atomic global 16 #1"),
            ("atom.add.noftz.bf16x2 d, [a], b;", "Atomic generic 4 #1"),
            ("red.global.v4.f32.add [a], {b,c,d,e};", "Reduction global 16 #0"),
            ("redux.sync.add.s32 d, a, m;", ""),
            (
                "cp.async.cg.shared.global.L2::128B [s], [g], 16, n;",
                "Store shared 16 #0 async; Load global 16 #1 async",
            ),
            ("cp.async.commit_group;", ""),
            ("cp.async.mbarrier.arrive.noinc.shared.b64 [m];", ""),
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [g], n, [m];",
                "Store shared ? #0 cluster async; Load global ? #1 async",
            ),
            (
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [s], [t, {x,y}], [m];",
                "Store shared ? #0 cluster async",
            ),
            ("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [t, {x}], [s];", "Load shared ? #1 async"),
            (
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [g], [s], 256;",
                "Reduction global 256 #0 async; Load shared 256 #1 async",
            ),
            ("cp.async.bulk.prefetch.L2.global [g], n;", ""),
            ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a,b,c,d}, [p];", "Load shared 16 #1 warp"),
            ("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [p], {a,b}, n;", "Store global ? #0 warp"),
            (
                "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [s], [g], 512, [m];",
                "Store shared 512 #0 cluster async; Load shared 512 #1 async",
            ),
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [s], [g], n, [m], k;",
                "Store shared ? #0 cluster async; Load global ? #1 async",
            ),
            ("red.shared::cluster.relaxed.cluster.add.u32 [a], 1;", "Reduction shared 4 #0 cluster"),
            ("ld.relaxed.cluster.global.u32 r, [a];", "Load global 4 #1"),
            ("mapa.shared::cluster.u32 d, a, 1;", ""),
            ("getctarank.shared::cluster.u32 d, a;", ""),
            ("multimem.st.relaxed.sys.global.f32 [p], v;", "Store global 4 #0"),
            (
                "multimem.cp.reduce.async.bulk.bulk_group.global.shared::cta.add.f32 [g], [s], 64;",
                "Reduction global 64 #0 async; Load shared 64 #1 async",
            ),
            ("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {a,b,c,d}, [p];", "Load global 16 #1"),
            ("mbarrier.arrive.shared.b64 s, [m];", ""),
            ("tex.2d.v4.f32.f32 {a,b,c,d}, [t, {x,y}];", ""),
            ("prefetch.global.L2 [p];", ""),
        ] {
            assert_eq!(described(text), expected, "{text}");
        }
    }
}
