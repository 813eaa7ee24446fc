//! Writes the PTX of a flat program.
//!
//! eBPF's registers are 64-bit registers of the block. The stack is in registers too, one a word, unless the program
//! computes addresses in it: then it is in local memory. All names begin with `xpt_`, so that they hide none that the
//! surrounding code's own expressions use.
//!
//! Source of instructions and their limits: NVIDIA's "PTX ISA", named by section where it matters.

mod alu;
mod atomics;
mod elements;
mod helpers;
mod memory;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::analyse::{State, Types};
use crate::flat::{Flat, FlatNode, Op, Operand, STACK_BYTES};
use crate::layout::{TABLE, header};
use crate::value::{Offset, Value};
use crate::{PtxBlock, Refusal, Request, Site, SiteKind, TableAt};

/// Appends a statement.
macro_rules! put {
    ($emitter:expr, $($text:tt)*) => {
        $emitter.line(format_args!($($text)*))
    };
}
use put;

/// The label after the program's last statement.
const END: &str = "$xpt_end";
/// R0.
const RESULT: &str = "%xpt_r0";

pub(crate) fn emit(flat: &Flat, types: &Types, request: &Request<'_>) -> Result<PtxBlock, Refusal> {
    let stack = if has_computed_stack_addresses(flat, types) { StackHome::Memory } else { StackHome::Registers };
    let mut emitter = Emitter {
        flat,
        types,
        request,
        stack,
        node: &flat.nodes[0],
        body: String::new(),
        counts: Counts::default(),
        stack_words: BTreeSet::new(),
        words: BTreeMap::new(),
        sites: request.options.sites.clone(),
        failures: Vec::new(),
        has_loops: false,
    };
    emitter.nodes()?;
    emitter.failures();
    Ok(PtxBlock { text: emitter.block(), sites: emitter.sites })
}

/// Where the stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackHome {
    Registers,
    Memory,
}

/// Whether the program accesses its stack at places that are known at run time only.
fn has_computed_stack_addresses(flat: &Flat, types: &Types) -> bool {
    let computed = |value| matches!(value, Value::Stack { at: Offset::Varies { .. }, .. });
    flat.nodes.iter().enumerate().any(|(at, node)| {
        let Some(state) = types.before(at) else { return false };
        match node.op {
            Op::Load { base, .. } | Op::Store { base, .. } | Op::Atomic { base, .. } => {
                computed(state.reg(node.frame, base))
            }
            Op::Call(_) => (1..=5).any(|it| computed(state.reg(node.frame, it))),
            _ => false,
        }
    })
}

/// How many names of each kind are in use.
#[derive(Default)]
struct Counts {
    longs: usize,
    words: usize,
    predicates: usize,
    labels: usize,
}

struct Emitter<'a> {
    flat: &'a Flat,
    types: &'a Types,
    request: &'a Request<'a>,
    stack: StackHome,
    /// The node that is being written.
    node: &'a FlatNode,
    body: String,
    counts: Counts,
    /// Words of the stack that are in registers, by frame and index from the stack's lowest word.
    stack_words: BTreeSet<(u8, i64)>,
    /// Words of the context that are read once, with their registers.
    words: BTreeMap<usize, String>,
    sites: Vec<Site>,
    /// Where runs go that end early: the site's position in the list, and the label.
    failures: Vec<(usize, String)>,
    has_loops: bool,
}

impl<'a> Emitter<'a> {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string can't fail.
        let _ = writeln!(self.body, "    {text};");
    }

    fn place(&mut self, label: &str) {
        self.body.push_str(label);
        self.body.push_str(":\n");
    }

    /// Returns a new 64-bit register.
    fn long(&mut self) -> String {
        self.counts.longs += 1;
        format!("%xpt_t{}", self.counts.longs - 1)
    }

    /// Returns a new 32-bit register.
    fn word(&mut self) -> String {
        self.counts.words += 1;
        format!("%xpt_w{}", self.counts.words - 1)
    }

    /// Returns a new register of 64 bits, or of 32.
    fn register(&mut self, wide: bool) -> String {
        if wide { self.long() } else { self.word() }
    }

    fn predicate(&mut self) -> String {
        self.counts.predicates += 1;
        format!("%xpt_p{}", self.counts.predicates - 1)
    }

    fn label(&mut self) -> String {
        self.counts.labels += 1;
        format!("$xpt_{}", self.counts.labels - 1)
    }

    /// Returns an error about the node that is being written.
    fn refuse<T>(&self, what: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { insn: self.node.insn, what: what.into() })
    }

    /// Returns the number of a site of the current instruction.
    fn site(&mut self, what: SiteKind) -> usize {
        let site = Site { insn: self.node.insn, what };
        self.sites.iter().position(|it| *it == site).unwrap_or_else(|| {
            self.sites.push(site);
            self.sites.len() - 1
        })
    }

    /// Returns a label that ends the run, counted.
    fn failure(&mut self, what: SiteKind) -> String {
        let site = self.site(what);
        if let Some((_, label)) = self.failures.iter().find(|it| it.0 == site) {
            return label.clone();
        }
        let label = self.label();
        self.failures.push((site, label.clone()));
        label
    }

    /// Adds 1 to the loss counter of a site.
    fn count_loss(&mut self, site: usize) {
        let losses = self.address(header::LOSSES);
        let offset = (self.request.options.first_site as usize + site) * 8;
        put!(self, "red.relaxed.sys.global.add.u64 [{losses}+{offset}], 1");
    }

    /// Returns a register with a word of the table's header that doesn't change while a kernel runs.
    fn header(&mut self, offset: i64) -> String {
        let value = self.long();
        put!(self, "ld.global.nc.u64 {value}, [{TABLE}+{offset}]");
        value
    }

    /// Returns a register with the address of what is at an offset that the table tells.
    fn address(&mut self, offset: i64) -> String {
        let address = self.header(offset);
        put!(self, "add.s64 {address}, {address}, {TABLE}");
        address
    }

    fn nodes(&mut self) -> Result<(), Refusal> {
        let labelled = self.labelled();
        for (at, node) in self.flat.nodes.iter().enumerate() {
            let types: &'a Types = self.types;
            let Some(state) = types.before(at) else { continue };
            self.node = node;
            if labelled.contains(&at) {
                self.place(&node_label(at));
            }
            if self.request.options.annotate {
                let _ = writeln!(self.body, "    // {}", node.insn);
            }
            self.node(at, state)?;
        }
        Ok(())
    }

    /// Returns the nodes that something jumps to.
    fn labelled(&self) -> BTreeSet<usize> {
        let mut labelled = BTreeSet::new();
        for (at, node) in self.flat.nodes.iter().enumerate() {
            let Some(state) = self.types.before(at) else { continue };
            if matches!(node.op, Op::Branch { .. }) && state.decide(node) != Some(false) {
                labelled.insert(node.target);
            }
            if node.op != Op::Exit && node.next != at + 1 {
                labelled.insert(node.next);
            }
        }
        labelled
    }

    fn node(&mut self, at: usize, state: &State) -> Result<(), Refusal> {
        match self.node.op {
            Op::Branch { .. } => return self.branch(at, state),
            Op::Exit => {
                put!(self, "bra {END}");
                return Ok(());
            }
            Op::Alu { op, wide, dst, rhs } => self.arithmetic(op, wide, dst, rhs, state)?,
            Op::Neg { wide, dst } => self.negate(wide, dst, state)?,
            Op::Extend { bits, wide, dst, src } => self.extend(bits, wide, dst, src, state)?,
            Op::Low { bits, dst } => self.keep_low(bits, dst, state)?,
            Op::Swap { bits, dst } => self.swap(bits, dst, state)?,
            Op::Const { dst, value } => {
                let dst = self.reg(dst);
                put!(self, "mov.b64 {dst}, {value:#x}");
            }
            Op::LoadMap { dst, map } => {
                let dst = self.reg(dst);
                put!(self, "mov.b64 {dst}, {}", map.0);
            }
            Op::LoadMapValue { dst, map, offset } => self.load_map_value(dst, map, offset)?,
            Op::Load { size, signed, dst, base, off } => self.load(size, signed, dst, base, off, state)?,
            Op::Store { size, base, off, value } => self.store(size, base, off, value, state)?,
            Op::Atomic { op, fetch, wide, base, off, src } => {
                self.atomic(atomics::Atomic { op, fetch, wide, src }, base, off, state)?;
            }
            Op::Call(helper) => self.call(helper, state)?,
            Op::Jump | Op::Enter | Op::Leave => {}
        }
        self.go(at, self.node.next);
        Ok(())
    }

    /// Goes to a node.
    fn go(&mut self, from: usize, to: usize) {
        if to == from + 1 {
            return;
        }
        self.burn(from, to);
        put!(self, "bra {}", node_label(to));
    }

    /// Takes from the fuel if a jump goes backward; a run without fuel ends.
    fn burn(&mut self, from: usize, to: usize) {
        if to > from {
            return;
        }
        self.has_loops = true;
        let (empty, failure) = (self.predicate(), self.failure(SiteKind::OutOfFuel));
        put!(self, "add.s32 %xpt_fuel, %xpt_fuel, -1");
        put!(self, "setp.lt.s32 {empty}, %xpt_fuel, 0");
        put!(self, "@{empty} bra {failure}");
    }

    fn branch(&mut self, at: usize, state: &State) -> Result<(), Refusal> {
        let Op::Branch { cond, wide, lhs, rhs } = self.node.op else { return Ok(()) };
        let FlatNode { next, target, .. } = *self.node;
        match state.decide(self.node) {
            Some(true) => self.go(at, target),
            Some(false) => self.go(at, next),
            None => {
                let holds = self.compare(cond, wide, lhs, rhs, state)?;
                if target > at {
                    put!(self, "@{holds} bra {}", node_label(target));
                } else {
                    let on = self.label();
                    put!(self, "@!{holds} bra {on}");
                    self.burn(at, target);
                    put!(self, "bra {}", node_label(target));
                    self.place(&on);
                }
                self.go(at, next);
            }
        }
        Ok(())
    }

    /// Returns the name of one of the current frame's registers.
    fn reg(&self, reg: u8) -> String {
        match (reg, self.node.frame) {
            (0..=5, _) | (_, 0) => format!("%xpt_r{reg}"),
            (_, frame) => format!("%xpt_f{frame}_r{reg}"),
        }
    }

    /// Returns the name of a register that is read.
    fn read(&self, reg: u8, state: &State) -> Result<String, Refusal> {
        match state.reg(self.node.frame, reg) {
            Value::Unset => self.refuse(format!("reads r{reg}, which is not set on every path")),
            _ => Ok(self.reg(reg)),
        }
    }

    /// Returns a 64-bit operand.
    fn operand(&self, operand: Operand, state: &State) -> Result<String, Refusal> {
        match operand {
            Operand::Reg(reg) => self.read(reg, state),
            Operand::Imm(imm) => Ok(imm.to_string()),
        }
    }

    /// Writes where runs go that end early.
    fn failures(&mut self) {
        for (site, label) in std::mem::take(&mut self.failures) {
            self.place(&label);
            self.count_loss(site);
            put!(self, "mov.b64 {RESULT}, 0");
            put!(self, "bra {END}");
        }
    }

    /// Puts the whole block together.
    fn block(&mut self) -> String {
        let mut body = std::mem::take(&mut self.body);
        let last = format!("    bra {END};\n");
        if body.ends_with(&last) {
            body.truncate(body.len() - last.len());
        }
        for (word, register) in self.words.clone() {
            self.materialize(word, &register);
        }
        let words = std::mem::take(&mut self.body);
        // What does no more than to add to registers need not be switched off: who adds these to maps is.
        let adds_alone = !self.request.options.sums.is_empty() && ![&body, &words].iter().any(|it| it.contains(TABLE));
        self.setup(!adds_alone);
        let setup = std::mem::replace(&mut self.body, body) + &words;
        let mut text = String::from("{\n");
        self.declarations(&mut text);
        text.push_str(&setup);
        text.push_str(&self.body);
        text.push_str(END);
        text.push_str(":\n");
        if let Some(result) = &self.request.options.result {
            let _ = writeln!(text, "    mov.b64 {result}, {RESULT};");
        }
        text.push_str("}\n");
        text
    }

    /// Writes what comes before the program: finds the table and ends if probes are off, where they can be, and sets what the
    /// program begins with.
    fn setup(&mut self, is_switched: bool) {
        put!(self, "mov.b64 {RESULT}, 0");
        if is_switched {
            self.find_table();
        }
        put!(self, "mov.b64 %xpt_r1, 0");
        if self.has_loops {
            put!(self, "mov.b32 %xpt_fuel, {}", self.request.options.fuel.min(i32::MAX as u32));
        }
        self.setup_stack();
    }

    fn find_table(&mut self) {
        let none = self.predicate();
        put!(self, "{}", self.request.options.table.load(TABLE));
        put!(self, "setp.eq.u64 {none}, {TABLE}, 0");
        put!(self, "@{none} bra {END}");
        if let TableAt::Register(_) = self.request.options.table {
            let (off, enabled) = (self.predicate(), self.long());
            put!(self, "ld.global.u64 {enabled}, [{TABLE}+{}]", header::ENABLED);
            put!(self, "setp.eq.u64 {off}, {enabled}, 0");
            put!(self, "@{off} bra {END}");
        }
    }

    fn setup_stack(&mut self) {
        let n_frames = i64::from(self.flat.n_frames);
        for frame in 0..n_frames {
            let pointer = frame_pointer(frame as u8);
            match self.stack {
                StackHome::Registers => put!(self, "mov.b64 {pointer}, {STACK_BYTES}"),
                StackHome::Memory => {
                    put!(self, "mov.b64 {pointer}, %xpt_stack");
                    put!(self, "add.s64 {pointer}, {pointer}, {}", (frame + 1) * STACK_BYTES);
                }
            }
        }
        for (frame, word) in self.stack_words.clone() {
            put!(self, "mov.b64 {}, 0", stack_word(frame, word));
        }
        if self.stack == StackHome::Memory {
            let (start, zero) = (self.long(), self.long());
            put!(self, "mov.b64 {start}, %xpt_stack");
            put!(self, "mov.b64 {zero}, 0");
            for at in (0..n_frames * STACK_BYTES).step_by(16) {
                put!(self, "st.local.v2.b64 [{start}+{at}], {{{zero}, {zero}}}");
            }
        }
    }

    fn declarations(&self, text: &mut String) {
        let n_frames = self.flat.n_frames;
        let Counts { longs, words, predicates, .. } = self.counts;
        let _ = writeln!(text, "    .reg .b64 {TABLE}, %xpt_r<11>;");
        for frame in 1..n_frames {
            let names: Vec<String> = (6..=10).map(|it| format!("%xpt_f{frame}_r{it}")).collect();
            let _ = writeln!(text, "    .reg .b64 {};", names.join(", "));
        }
        let stack: Vec<String> = self.stack_words.iter().map(|(frame, word)| stack_word(*frame, *word)).collect();
        if !stack.is_empty() {
            let _ = writeln!(text, "    .reg .b64 {};", stack.join(", "));
        }
        for (kind, name, n) in [("b64", "t", longs), ("b32", "w", words), ("pred", "p", predicates)] {
            if n > 0 {
                let _ = writeln!(text, "    .reg .{kind} %xpt_{name}<{n}>;");
            }
        }
        if self.has_loops {
            text.push_str("    .reg .b32 %xpt_fuel;\n");
        }
        if self.stack == StackHome::Memory {
            let _ = writeln!(text, "    .local .align 16 .b8 %xpt_stack[{}];", i64::from(n_frames) * STACK_BYTES);
        }
    }
}

fn node_label(node: usize) -> String {
    format!("$xpt_n{node}")
}

fn frame_pointer(frame: u8) -> String {
    match frame {
        0 => "%xpt_r10".into(),
        _ => format!("%xpt_f{frame}_r10"),
    }
}

/// Returns the register of a word of a frame's stack, by index from the lowest.
fn stack_word(frame: u8, word: i64) -> String {
    format!("%xpt_s{frame}_{word}")
}
