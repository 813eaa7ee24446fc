//! String matching: byte by byte if the string is bytes, through the tracer's own helper if it is a
//! name.

use super::emit::Emitter;
use super::typed::{Base, Expr, Where};
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::{Label, helper};

impl Emitter<'_, '_> {
    /// Jumps to `unmatched` unless the string contains `wanted` at the place.
    pub(super) fn matched(&mut self, place: Where, string: &Expr, wanted: &str, unmatched: Label) {
        match string.ty.base {
            Base::Text(capacity) => self.text_matched(place, string, capacity, wanted.as_bytes(), unmatched),
            _ => self.name_matched(place, string, wanted, unmatched),
        }
    }

    /// Names can be longer than the stack, and only the tracer has their text.
    fn name_matched(&mut self, place: Where, name: &Expr, wanted: &str, unmatched: Label) {
        let wanted = self.build.string(wanted);
        self.eval_strict(name);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.mov_imm(Reg::R2, i64::from(wanted));
        self.asm.mov_imm(
            Reg::R3,
            match place {
                Where::Anywhere => helper::MATCH_ANYWHERE,
                Where::Start => helper::MATCH_START,
                Where::End => helper::MATCH_END,
            },
        );
        self.asm.call(helper::NAME_MATCHES);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, unmatched);
    }

    fn text_matched(&mut self, place: Where, text: &Expr, capacity: u32, wanted: &[u8], unmatched: Label) {
        let missing = self.strict(text.at);
        if wanted.len() > capacity as usize {
            self.discard(text, missing);
            self.asm.jump(unmatched);
            return;
        }
        let mark = self.mark();
        let slot = self.alloc(capacity as usize + 16);
        self.text(text, slot, capacity, missing);
        let last = capacity as usize - wanted.len();
        match place {
            _ if wanted.is_empty() => {}
            Where::Start => self.begins(slot, wanted, unmatched),
            Where::Anywhere => self.found(slot, last, wanted, unmatched),
            Where::End => {
                // A text that fills its bytes has no NUL after it.
                self.asm.st_imm(Size::B, Reg::FP, slot + capacity as i16, 0);
                self.found(slot, last, &[wanted, b"\0"].concat(), unmatched);
            }
        }
        self.release(mark);
    }

    /// Compares the words of `wanted`, the last one under a mask.
    fn begins(&mut self, slot: i16, wanted: &[u8], unmatched: Label) {
        for (index, bytes) in wanted.chunks(8).enumerate() {
            self.load(Reg::R0, slot + index as i16 * 8);
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            if bytes.len() < 8 {
                self.asm.mov_imm(Reg::R1, (1i64 << (8 * bytes.len())) - 1);
                self.asm.alu(Alu::And, Reg::R0, Reg::R1);
            }
            self.asm.mov_imm(Reg::R1, i64::from_le_bytes(word));
            self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R1, unmatched);
        }
    }

    /// Tries every position from 0 to `last` (R1) until the text ends.
    ///
    /// After the first byte, don't branch per byte: the verifier follows every branch of every
    /// iteration, and remembers only a few thousand.
    fn found(&mut self, slot: i16, last: usize, wanted: &[u8], unmatched: Label) {
        let Some((first, rest)) = wanted.split_first() else { return };
        let (next, on, found) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov_imm(Reg::R1, 0);
        self.asm.place(next);
        self.address(Reg::R2, slot);
        self.asm.alu(Alu::Add, Reg::R2, Reg::R1);
        self.asm.ldx(Size::B, Reg::R3, Reg::R2, 0);
        self.asm.jump_if_imm(Cond::Eq, Reg::R3, 0, unmatched);
        self.asm.jump_if_imm(Cond::Ne, Reg::R3, i32::from(*first), on);
        self.asm.mov_imm(Reg::R4, 0);
        for (index, byte) in rest.iter().enumerate() {
            self.asm.ldx(Size::B, Reg::R3, Reg::R2, index as i16 + 1);
            self.asm.alu_imm(Alu::Xor, Reg::R3, i32::from(*byte));
            self.asm.alu(Alu::Or, Reg::R4, Reg::R3);
        }
        self.asm.jump_if_imm(Cond::Eq, Reg::R4, 0, found);
        self.asm.place(on);
        self.asm.alu_imm(Alu::Add, Reg::R1, 1);
        self.asm.jump_if_imm(Cond::Sle, Reg::R1, last as i32, next);
        self.asm.jump(unmatched);
        self.asm.place(found);
    }
}
