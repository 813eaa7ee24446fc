//! Maps: how elements are found, written and deleted.
//!
//! A hash is searched slot by slot from where the key's hash says. See [`crate::layout::state`] for why readers need
//! no lock. Loads of states and keys go past the processor's own cache, and each depends on the one before it, so a
//! key that differs is almost always another key; only then a fence makes sure that it was not read too early.

use xputrace_bytecode::insn::atomic;
use xputrace_bytecode::{BpfMapId, helper};

use super::memory::{Address, Reached, Space, descriptor_at};
use super::{Emitter, RESULT, put};
use crate::analyse::State;
use crate::layout::{HASH_MULTIPLIER, MAX_PROBES, MAX_RETRIES, Scope, Storage, TABLE, descriptor, state as slot_state};
use crate::sums;
use crate::value::Value;
use crate::{DeviceMap, Refusal};

// Source: `include/uapi/asm-generic/errno-base.h`.
const ENOENT: i64 = -2;
const E2BIG: i64 = -7;
const EBUSY: i64 = -16;
const EEXIST: i64 = -17;
const EINVAL: i64 = -22;

/// A map and what of it a call uses.
#[derive(Clone, Copy)]
struct UsedMap {
    map: BpfMapId,
    shape: DeviceMap,
}

impl UsedMap {
    fn scope(&self) -> &'static str {
        match self.shape.scope {
            Scope::Device => "gpu",
            Scope::System => "sys",
        }
    }

    /// Returns the operand for a word of the map's descriptor.
    fn counter(&self, offset: i64) -> String {
        format!("[{TABLE}+{}]", descriptor_at(self.map) + offset)
    }
}

/// Whether something holds, as far as it is known now.
#[derive(Clone)]
enum Test {
    Known(bool),
    Register(String),
}

/// A search in a hash. The labels are where it goes on; the registers say where it was then.
struct Search {
    /// Index of the slot.
    slot: String,
    /// Address of the slot's state, and what it was.
    state_at: String,
    state: String,
    fingerprint: String,
    retries: String,
    /// Looks at the slot once more, after a moment; there in a search that waits.
    look_again: String,
    hit: String,
    /// The key is there, deleted.
    deleted: String,
    /// A slot was never used, so the key isn't there.
    empty: String,
    /// No slot in [`MAX_PROBES`].
    exhausted: String,
    /// A slot of this key was being written for too long.
    contended: String,
}

impl Emitter<'_> {
    /// Returns the map in R1.
    fn target(&self, state: &State) -> Result<UsedMap, Refusal> {
        match state.reg(self.node.frame, 1) {
            Value::Map(map) => Ok(UsedMap { map, shape: self.request.maps[map.index()] }),
            other => self.refuse(format!("r1 is {}, not a map", other.name())),
        }
    }

    pub(super) fn lookup(&mut self, state: &State) -> Result<(), Refusal> {
        let target = self.target(state)?;
        if let Some(sum) = self.request.options.sums.find(target.map, || state.key(target.shape)) {
            put!(self, "mov.b32 {}, 1", sums::there(sum));
            // Any address but 0: what is done there is done to registers.
            put!(self, "mov.b64 {RESULT}, 1");
            return Ok(());
        }
        let key = self.argument(2, target.shape.key_bytes, state)?;
        match target.shape.kind {
            Storage::Array | Storage::OuterArray => self.lookup_array(target, &key[0]),
            Storage::PerThreadArray => self.lookup_per_thread(target, &key[0]),
            Storage::Hash => self.lookup_hash(target, &key),
            Storage::Ring => return self.refuse("looks up an element of a ring"),
        }
        Ok(())
    }

    fn lookup_array(&mut self, target: UsedMap, index: &str) {
        let done = self.label();
        put!(self, "mov.b64 {RESULT}, 0");
        self.unless_in_array(target, index, &done);
        let address = self.value_address(target, index);
        put!(self, "mov.b64 {RESULT}, {address}");
        self.place(&done);
    }

    fn unless_in_array(&mut self, target: UsedMap, index: &str, label: &str) {
        let outside = self.predicate();
        put!(self, "setp.ge.u64 {outside}, {index}, {}", target.shape.max_entries);
        put!(self, "@{outside} bra {label}");
    }

    /// Returns a register with the address of the value of a slot, as a 64-bit index.
    fn value_address(&mut self, target: UsedMap, slot: &str) -> String {
        if target.shape.parts <= 1 {
            return self.numbered_value(target, slot);
        }
        let address = self.numbered_value(target, slot);
        let (processor, part) = (self.word(), self.long());
        put!(self, "mov.u32 {processor}, %smid");
        put!(self, "rem.u32 {processor}, {processor}, {}", target.shape.parts);
        put!(self, "cvt.u64.u32 {part}, {processor}");
        put!(self, "mad.lo.u64 {address}, {part}, {}, {address}", target.shape.part_bytes());
        address
    }

    /// Returns a register with the address of a value by its number.
    fn numbered_value(&mut self, target: UsedMap, index: &str) -> String {
        let values = self.part(target.map, descriptor::VALUES);
        let address = self.long();
        put!(self, "mad.lo.u64 {address}, {index}, {}, {values}", target.shape.value_stride());
        address
    }

    fn lookup_per_thread(&mut self, target: UsedMap, index: &str) {
        let (done, beyond, place) = (self.label(), self.label(), self.long());
        put!(self, "mov.b64 {RESULT}, 0");
        self.unless_in_array(target, index, &done);
        let (thread, threads) = (self.thread_number(), self.descriptor(target.map, descriptor::THREADS));
        let outside = self.predicate();
        put!(self, "setp.ge.u64 {outside}, {thread}, {threads}");
        put!(self, "@{outside} bra {beyond}");
        put!(self, "mad.lo.u64 {place}, {index}, {threads}, {thread}");
        let address = self.numbered_value(target, &place);
        put!(self, "mov.b64 {RESULT}, {address}");
        put!(self, "bra {done}");
        self.place(&beyond);
        self.count(target, descriptor::BEYOND);
        self.place(&done);
    }

    /// Returns a register with the thread's number in the launch: x first, then y, then z, over the whole grid.
    fn thread_number(&mut self) -> String {
        let number = self.long();
        for (axis, first) in [("z", true), ("y", false), ("x", false)] {
            let (block, threads, thread, blocks) = (self.word(), self.word(), self.word(), self.word());
            let (place, wide, extent) = (self.long(), self.long(), self.long());
            put!(self, "mov.u32 {block}, %ctaid.{axis}");
            put!(self, "mov.u32 {threads}, %ntid.{axis}");
            put!(self, "mov.u32 {thread}, %tid.{axis}");
            put!(self, "mul.wide.u32 {place}, {block}, {threads}");
            put!(self, "cvt.u64.u32 {wide}, {thread}");
            put!(self, "add.s64 {place}, {place}, {wide}");
            if first {
                put!(self, "mov.b64 {number}, {place}");
                continue;
            }
            put!(self, "mov.u32 {blocks}, %nctaid.{axis}");
            put!(self, "mul.wide.u32 {extent}, {blocks}, {threads}");
            put!(self, "mad.lo.u64 {number}, {number}, {extent}, {place}");
        }
        number
    }

    /// Adds 1 to one of the map's counters.
    fn count(&mut self, target: UsedMap, counter: i64) {
        put!(self, "red.relaxed.gpu.global.add.u64 {}, 1", target.counter(counter));
    }

    fn lookup_hash(&mut self, target: UsedMap, key: &[String]) {
        let done = self.label();
        put!(self, "mov.b64 {RESULT}, 0");
        let search = self.search(target, key, false);
        self.place(&search.hit);
        let index = self.long();
        put!(self, "cvt.u64.u32 {index}, {}", search.slot);
        let address = self.value_address(target, &index);
        put!(self, "mov.b64 {RESULT}, {address}");
        put!(self, "bra {done}");
        for absent in [&search.deleted, &search.empty, &search.exhausted] {
            self.place(absent);
        }
        self.place(&done);
    }

    /// Returns a register with the key's hash; see [`crate::layout::hash`].
    fn hash(&mut self, key: &[String]) -> String {
        let (hash, upper) = (self.long(), self.long());
        put!(self, "mov.b64 {hash}, 0");
        for word in key {
            put!(self, "xor.b64 {hash}, {hash}, {word}");
            put!(self, "mul.lo.u64 {hash}, {hash}, {HASH_MULTIPLIER:#x}");
            put!(self, "shr.u64 {upper}, {hash}, 32");
            put!(self, "xor.b64 {hash}, {hash}, {upper}");
        }
        hash
    }

    /// Searches a key. Every way out is a label that the caller places. A search that `waits` looks again at a slot
    /// that is being written and may be the key's; others pass it by, as the element isn't there yet.
    fn search(&mut self, target: UsedMap, key: &[String], waits: bool) -> Search {
        let search = Search {
            slot: self.word(),
            state_at: self.long(),
            state: self.word(),
            fingerprint: self.word(),
            retries: self.word(),
            look_again: self.label(),
            hit: self.label(),
            deleted: self.label(),
            empty: self.label(),
            exhausted: self.label(),
            contended: self.label(),
        };
        let Search { slot, state_at, state, fingerprint, retries, .. } = &search;
        let (hash, upper, tries) = (self.hash(key), self.long(), self.word());
        let mask = target.shape.n_slots() - 1;
        let states = self.part(target.map, descriptor::STATES);
        put!(self, "cvt.u32.u64 {slot}, {hash}");
        put!(self, "and.b32 {slot}, {slot}, {mask}");
        put!(self, "shr.u64 {upper}, {hash}, 32");
        put!(self, "cvt.u32.u64 {fingerprint}, {upper}");
        put!(self, "and.b32 {fingerprint}, {fingerprint}, {:#x}", !slot_state::MASK);
        put!(self, "mov.b32 {tries}, 0");
        put!(self, "mov.b32 {retries}, 0");

        let (again, next) = (self.label(), self.label());
        let (never, other, writing) = (self.predicate(), self.predicate(), self.predicate());
        let difference = self.word();
        self.place(&again);
        put!(self, "mad.wide.u32 {state_at}, {slot}, 4, {states}");
        put!(self, "ld.relaxed.{}.global.u32 {state}, [{state_at}]", target.scope());
        put!(self, "setp.eq.u32 {never}, {state}, {}", slot_state::EMPTY);
        put!(self, "@{never} bra {}", search.empty);
        put!(self, "xor.b32 {difference}, {state}, {fingerprint}");
        put!(self, "setp.gt.u32 {other}, {difference}, {}", slot_state::MASK);
        put!(self, "@{other} bra {next}");
        put!(self, "setp.eq.u32 {writing}, {difference}, {}", slot_state::BUSY);
        put!(self, "@{writing} bra {}", if waits { &search.look_again } else { &next });
        self.compare_keys(target, key, slot, &next);
        let full = self.predicate();
        put!(self, "setp.eq.u32 {full}, {difference}, {}", slot_state::FULL);
        put!(self, "@{full} bra {}", search.hit);
        put!(self, "bra {}", search.deleted);
        if waits {
            self.place(&search.look_again);
            self.retry(&search, &again);
        }
        let last = self.predicate();
        self.place(&next);
        put!(self, "add.s32 {tries}, {tries}, 1");
        put!(self, "setp.ge.u32 {last}, {tries}, {}", MAX_PROBES.min(target.shape.n_slots()));
        put!(self, "@{last} bra {}", search.exhausted);
        put!(self, "add.s32 {slot}, {slot}, 1");
        put!(self, "and.b32 {slot}, {slot}, {mask}");
        put!(self, "bra {again}");
        search
    }

    /// Looks at the slot again after a moment, a limited number of times.
    fn retry(&mut self, search: &Search, again: &str) {
        let Search { retries, contended, .. } = search;
        let last = self.predicate();
        put!(self, "add.s32 {retries}, {retries}, 1");
        put!(self, "setp.ge.u32 {last}, {retries}, {MAX_RETRIES}");
        put!(self, "@{last} bra {contended}");
        put!(self, "nanosleep.u32 32");
        put!(self, "bra {again}");
    }

    /// Goes to `other` unless the slot holds the key.
    fn compare_keys(&mut self, target: UsedMap, key: &[String], slot: &str, other: &str) {
        let keys = self.part(target.map, descriptor::KEYS);
        let (key_at, fenced, word, difference) = (self.long(), self.word(), self.long(), self.long());
        let (compare, same, equal, certain) = (self.label(), self.label(), self.predicate(), self.predicate());
        put!(self, "mad.wide.u32 {key_at}, {slot}, {}, {keys}", target.shape.key_stride());
        put!(self, "mov.b32 {fenced}, 0");
        self.place(&compare);
        put!(self, "mov.b64 {difference}, 0");
        for (at, expected) in key.iter().enumerate() {
            put!(self, "ld.relaxed.{}.global.u64 {word}, [{key_at}+{}]", target.scope(), at * 8);
            put!(self, "xor.b64 {word}, {word}, {expected}");
            put!(self, "or.b64 {difference}, {difference}, {word}");
        }
        put!(self, "setp.eq.u64 {equal}, {difference}, 0");
        put!(self, "@{equal} bra {same}");
        put!(self, "setp.ne.u32 {certain}, {fenced}, 0");
        put!(self, "@{certain} bra {other}");
        put!(self, "fence.acq_rel.{}", target.scope());
        put!(self, "mov.b32 {fenced}, 1");
        put!(self, "bra {compare}");
        self.place(&same);
    }

    fn jump_if(&mut self, test: &Test, label: &str) {
        match test {
            Test::Known(true) => put!(self, "bra {label}"),
            Test::Known(false) => {}
            Test::Register(register) => put!(self, "@{register} bra {label}"),
        }
    }

    /// Tests the flags in R4 of an update.
    fn flags_are(&mut self, known: Option<u64>, comparison: &str, flags: i32) -> Test {
        match known {
            Some(known) if comparison == "gt" => Test::Known(known > flags as u64),
            Some(known) => Test::Known(known == flags as u64),
            None => {
                let register = self.predicate();
                put!(self, "setp.{comparison}.u64 {register}, %xpt_r4, {flags}");
                Test::Register(register)
            }
        }
    }

    pub(super) fn update(&mut self, state: &State) -> Result<(), Refusal> {
        let target = self.target(state)?;
        let key = self.argument(2, target.shape.key_bytes, state)?;
        let value = self.argument(3, target.shape.value_bytes, state)?;
        self.read(4, state)?;
        let known = state.reg(self.node.frame, 4).scalar().known;
        let invalid = self.flags_are(known, "gt", helper::UPDATE_EXIST);
        let only_new = self.flags_are(known, "eq", helper::UPDATE_NOEXIST);
        let only_old = self.flags_are(known, "eq", helper::UPDATE_EXIST);
        let done = self.label();
        put!(self, "mov.b64 {RESULT}, {EINVAL}");
        self.jump_if(&invalid, &done);
        match target.shape.kind {
            Storage::Array | Storage::OuterArray | Storage::PerThreadArray => {
                self.update_array(target, &key[0], &value, &only_new, &done)?
            }
            Storage::Hash => self.update_hash(target, &key, &value, [&only_new, &only_old], &done)?,
            Storage::Ring => return self.refuse("updates an element of a ring"),
        }
        self.place(&done);
        Ok(())
    }

    /// Changes the first word of an element, from zeros if there is none.
    pub(super) fn modify(&mut self, state: &State) -> Result<(), Refusal> {
        let target = self.target(state)?;
        let key = self.argument(2, target.shape.key_bytes, state)?;
        let operand = self.read(3, state)?;
        let name = match i32::try_from(self.known(4, "the operation", state)?) {
            Ok(atomic::ADD) => "add.u64",
            Ok(atomic::OR) => "or.b64",
            Ok(atomic::AND) => "and.b64",
            Ok(atomic::XOR) => "xor.b64",
            _ => return self.refuse("changes an element by an operation that does not exist"),
        };
        if target.shape.value_bytes < size_of::<u64>() as u32 {
            return self.refuse("changes the first word of a value that has none");
        }
        let (failure, missing, done) = (self.long(), self.predicate(), self.label());
        put!(self, "mov.b64 {failure}, {E2BIG}");
        match target.shape.kind {
            Storage::Array | Storage::OuterArray => self.lookup_array(target, &key[0]),
            Storage::PerThreadArray => self.lookup_per_thread(target, &key[0]),
            Storage::Hash => {
                let zero = self.constant(0);
                let zeros = vec![zero; target.shape.value_stride() as usize / 8];
                let made = self.label();
                self.update_hash(target, &key, &zeros, [&Test::Known(true), &Test::Known(false)], &made)?;
                self.place(&made);
                put!(self, "mov.b64 {failure}, {RESULT}");
                self.lookup_hash(target, &key);
            }
            Storage::Ring => return self.refuse("changes an element of a ring"),
        }
        put!(self, "setp.eq.u64 {missing}, {RESULT}, 0");
        put!(self, "@{missing} bra {done}");
        put!(self, "red.relaxed.{}.global.{name} [{RESULT}+0], {operand}", target.scope());
        put!(self, "mov.b64 {failure}, 0");
        self.place(&done);
        put!(self, "mov.b64 {RESULT}, {failure}");
        Ok(())
    }

    fn update_array(
        &mut self,
        target: UsedMap,
        index: &str,
        value: &[String],
        only_new: &Test,
        done: &str,
    ) -> Result<(), Refusal> {
        put!(self, "mov.b64 {RESULT}, {E2BIG}");
        self.unless_in_array(target, index, done);
        put!(self, "mov.b64 {RESULT}, {EEXIST}");
        self.jump_if(only_new, done);
        let address = match target.shape.kind {
            Storage::PerThreadArray => {
                let missing = self.predicate();
                self.lookup_per_thread(target, index);
                let address = self.long();
                put!(self, "mov.b64 {address}, {RESULT}");
                put!(self, "setp.eq.u64 {missing}, {RESULT}, 0");
                put!(self, "mov.b64 {RESULT}, {E2BIG}");
                put!(self, "@{missing} bra {done}");
                address
            }
            _ => self.value_address(target, index),
        };
        self.write_value(target, &address, value)?;
        put!(self, "mov.b64 {RESULT}, 0");
        Ok(())
    }

    fn write_value(&mut self, target: UsedMap, address: &str, value: &[String]) -> Result<(), Refusal> {
        let space = Space::Global(target.shape.scope);
        let to = Reached::Memory(Address { space, base: address.into(), off: 0, zeros: 3 });
        self.store_words(value, &to, target.shape.value_bytes)
    }

    fn update_hash(
        &mut self,
        target: UsedMap,
        key: &[String],
        value: &[String],
        [only_new, only_old]: [&Test; 2],
        done: &str,
    ) -> Result<(), Refusal> {
        let search = self.search(target, key, true);
        let index = self.long();
        self.place(&search.hit);
        put!(self, "mov.b64 {RESULT}, {EEXIST}");
        self.jump_if(only_new, done);
        put!(self, "cvt.u64.u32 {index}, {}", search.slot);
        let address = self.value_address(target, &index);
        self.write_value(target, &address, value)?;
        put!(self, "mov.b64 {RESULT}, 0");
        put!(self, "bra {done}");

        let full = self.label();
        self.place(&search.deleted);
        self.place(&search.empty);
        put!(self, "mov.b64 {RESULT}, {ENOENT}");
        self.jump_if(only_old, done);
        self.claim(target, &search, key, &full);
        self.fill(target, &search, key, value)?;
        put!(self, "mov.b64 {RESULT}, 0");
        put!(self, "bra {done}");

        self.place(&full);
        self.place(&search.exhausted);
        put!(self, "mov.b64 {RESULT}, {ENOENT}");
        self.jump_if(only_old, done);
        self.count(target, descriptor::FULL);
        put!(self, "mov.b64 {RESULT}, {E2BIG}");
        put!(self, "bra {done}");
        self.place(&search.contended);
        self.count(target, descriptor::CONTENDED);
        put!(self, "mov.b64 {RESULT}, {EBUSY}");
        Ok(())
    }

    fn change_live(&mut self, target: UsedMap, by: i64) {
        put!(self, "red.relaxed.gpu.global.add.u64 {}, {by}", target.counter(descriptor::LIVE));
    }

    /// Makes the slot this thread's to write; goes to `full` if there are enough elements.
    ///
    /// Threads that lose against each other must not count as elements, or thousands that make the same one would find
    /// the map full; so an element is counted once its slot is claimed. A slot that was claimed for nothing keeps its key:
    /// it can't be empty again, as others may have gone past it.
    fn claim(&mut self, target: UsedMap, search: &Search, key: &[String], full: &str) {
        let Search { state_at, state, fingerprint, look_again, .. } = search;
        let (live, enough, now, changed) = (self.long(), self.predicate(), self.word(), self.predicate());
        let (busy, old, lost, fits) = (self.word(), self.word(), self.predicate(), self.predicate());
        let (claim, won) = (self.label(), self.label());
        put!(self, "ld.relaxed.gpu.global.u64 {live}, {}", target.counter(descriptor::LIVE));
        put!(self, "setp.ge.u64 {enough}, {live}, {}", target.shape.max_entries);
        put!(self, "@!{enough} bra {claim}");
        // The last element may be this key's, made a moment ago.
        put!(self, "ld.relaxed.{}.global.u32 {now}, [{state_at}]", target.scope());
        put!(self, "setp.ne.u32 {changed}, {now}, {state}");
        put!(self, "@{changed} bra {look_again}");
        put!(self, "bra {full}");
        self.place(&claim);
        put!(self, "or.b32 {busy}, {fingerprint}, {}", slot_state::BUSY);
        put!(self, "atom.relaxed.{}.global.cas.b32 {old}, [{state_at}], {state}, {busy}", target.scope());
        put!(self, "setp.ne.u32 {lost}, {old}, {state}");
        put!(self, "@{lost} bra {look_again}");
        put!(self, "atom.relaxed.gpu.global.add.u64 {live}, {}, 1", target.counter(descriptor::LIVE));
        put!(self, "setp.lt.u64 {fits}, {live}, {}", target.shape.max_entries);
        put!(self, "@{fits} bra {won}");
        self.change_live(target, -1);
        self.write_key(target, search, key);
        self.release(target, search, slot_state::DELETED);
        put!(self, "bra {full}");
        self.place(&won);
    }

    fn write_key(&mut self, target: UsedMap, search: &Search, key: &[String]) {
        let (keys, key_at) = (self.part(target.map, descriptor::KEYS), self.long());
        put!(self, "mad.wide.u32 {key_at}, {}, {}, {keys}", search.slot, target.shape.key_stride());
        for (at, word) in key.iter().enumerate() {
            put!(self, "st.relaxed.{}.global.u64 [{key_at}+{}], {word}", target.scope(), at * 8);
        }
    }

    /// Gives a claimed slot to readers.
    fn release(&mut self, target: UsedMap, search: &Search, state: u32) {
        let word = self.word();
        put!(self, "or.b32 {word}, {}, {state}", search.fingerprint);
        put!(self, "st.release.{}.global.u32 [{}], {word}", target.scope(), search.state_at);
    }

    /// Writes a claimed slot.
    fn fill(&mut self, target: UsedMap, search: &Search, key: &[String], value: &[String]) -> Result<(), Refusal> {
        let index = self.long();
        self.write_key(target, search, key);
        put!(self, "cvt.u64.u32 {index}, {}", search.slot);
        let address = self.value_address(target, &index);
        self.write_value(target, &address, value)?;
        self.release(target, search, slot_state::FULL);
        Ok(())
    }

    pub(super) fn delete(&mut self, state: &State) -> Result<(), Refusal> {
        let target = self.target(state)?;
        let key = self.argument(2, target.shape.key_bytes, state)?;
        if target.shape.kind != Storage::Hash {
            put!(self, "mov.b64 {RESULT}, {EINVAL}");
            return Ok(());
        }
        if target.shape.parts > 1 {
            return self.refuse("deletes an element of a map that has a part for each multiprocessor");
        }
        let (done, gone, old, lost) = (self.label(), self.word(), self.word(), self.predicate());
        put!(self, "mov.b64 {RESULT}, {ENOENT}");
        let search = self.search(target, &key, false);
        self.place(&search.hit);
        put!(self, "or.b32 {gone}, {}, {}", search.fingerprint, slot_state::DELETED);
        put!(
            self,
            "atom.relaxed.{}.global.cas.b32 {old}, [{}], {}, {gone}",
            target.scope(),
            search.state_at,
            search.state
        );
        put!(self, "setp.ne.u32 {lost}, {old}, {}", search.state);
        put!(self, "@{lost} bra {done}");
        self.change_live(target, -1);
        put!(self, "mov.b64 {RESULT}, 0");
        for absent in [&search.deleted, &search.empty, &search.exhausted, &done] {
            self.place(absent);
        }
        Ok(())
    }
}
