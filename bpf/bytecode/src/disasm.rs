//! Formats programs like the verifier's log, so that the two can be compared.
//!
//! ```text
//! ; @calls[e.tid].count() @ calls.rhai:3
//!    0: (bf) r6 = r1
//!    1: (18) r1 = map[calls]
//!    3: (85) call map_lookup_elem#1
//! ```

use std::fmt::Write as _;

use crate::helper;
use crate::image::{Image, Line, Program};
use crate::insn::{self, Insn, Size, atomic, class, mode};

/// Returns the program, one instruction per line; each stretch is headed by its line of the script.
pub fn text(program: &Program, image: &Image) -> String {
    let mut out = String::new();
    let mut headed = None;
    let mut skip = false;
    for (at, insn) in program.insns.iter().enumerate() {
        if std::mem::take(&mut skip) {
            continue;
        }
        let place = program.line_of(at).map(|it| (it.file, it.line));
        if place != headed {
            headed = place;
            out.extend(program.line_of(at).map(|it| heading(it, image)));
        }
        skip = is_ld_imm64(insn) && at + 1 < program.insns.len();
        let what = instruction(program, image, at);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{at:4}: ({:02x}) {what}", insn.code);
    }
    out
}

fn heading(line: Line, image: &Image) -> String {
    let Some((file, text)) = image.sources.get(line.file) else {
        return format!("; @ file {}:{}\n", line.file, line.line);
    };
    let text = line.line.checked_sub(1).and_then(|it| text.lines().nth(it as usize));
    match text.unwrap_or_default().trim() {
        "" => format!("; @ {file}:{}\n", line.line),
        text => format!("; {text} @ {file}:{}\n", line.line),
    }
}

fn is_ld_imm64(insn: &Insn) -> bool {
    insn.code == class::LD | mode::IMM | Size::Dw as u8
}

fn instruction(program: &Program, image: &Image, at: usize) -> String {
    let insn = &program.insns[at];
    let text = match insn.code & 7 {
        class::LD => ld_imm64(program, image, at),
        class::LDX => load(insn),
        class::ST => memory(insn).map(|it| format!("{it} = {}", insn.imm)),
        class::STX if insn.code & 0xe0 == mode::ATOMIC => atomic_operation(insn),
        class::STX => memory(insn).map(|it| format!("{it} = r{}", insn.src)),
        class::ALU => arithmetic(insn, 'w'),
        class::ALU64 => arithmetic(insn, 'r'),
        class::JMP => jump(insn, 'r'),
        _ => jump(insn, 'w'),
    };
    text.unwrap_or_else(|| {
        let Insn { dst, src, off, imm, .. } = insn;
        format!("unknown (dst {dst}, src {src}, off {off}, imm {imm})")
    })
}

fn ld_imm64(program: &Program, image: &Image, at: usize) -> Option<String> {
    let insn = program.insns.get(at).filter(|it| is_ld_imm64(it))?;
    let high = program.insns.get(at + 1)?.imm;
    let dst = insn.dst;
    let map = program.map_refs.iter().find(|(slot, _)| *slot == at);
    let name = map.and_then(|(_, map)| image.maps.get(map.index())).map_or("?", |it| it.name.as_str());
    match insn.src {
        insn::PSEUDO_MAP_FD => return Some(format!("r{dst} = map[{name}]")),
        insn::PSEUDO_MAP_VALUE => return Some(format!("r{dst} = map[{name}][0]+{high}")),
        _ => {}
    }
    let value = u64::from(insn.imm as u32) | u64::from(high as u32) << 32;
    Some(format!("r{dst} = {value:#x}"))
}

fn bits(code: u8) -> usize {
    8 * Size::of(code).bytes()
}

fn load(insn: &Insn) -> Option<String> {
    let sign = match insn.code & 0xe0 {
        mode::MEM => 'u',
        mode::MEMSX => 's',
        _ => return None,
    };
    let Insn { code, dst, src, off, .. } = insn;
    Some(format!("r{dst} = *({sign}{} *)(r{src} {off:+})", bits(*code)))
}

fn memory(insn: &Insn) -> Option<String> {
    let Insn { code, dst, off, .. } = insn;
    (code & 0xe0 == mode::MEM).then(|| format!("*(u{} *)(r{dst} {off:+})", bits(*code)))
}

fn atomic_operation(insn: &Insn) -> Option<String> {
    let Insn { code, dst, src, off, imm } = insn;
    let bits = bits(*code);
    let place = format!("(u{bits} *)(r{dst} {off:+})");
    let (sign, name) = match imm & !atomic::FETCH {
        _ if *imm == atomic::XCHG => {
            return Some(format!("r{src} = atomic{bits}_xchg({place}, r{src})"));
        }
        _ if *imm == atomic::CMPXCHG => {
            return Some(format!("r0 = atomic{bits}_cmpxchg({place}, r0, r{src})"));
        }
        atomic::ADD => ("+=", "add"),
        atomic::OR => ("|=", "or"),
        atomic::AND => ("&=", "and"),
        atomic::XOR => ("^=", "xor"),
        _ => return None,
    };
    Some(match imm & atomic::FETCH {
        0 => format!("lock *{place} {sign} r{src}"),
        _ => format!("r{src} = atomic{bits}_fetch_{name}({place}, r{src})"),
    })
}

fn arithmetic(insn: &Insn, register: char) -> Option<String> {
    let Insn { code, dst, src, off, imm } = insn;
    let from_register = code & insn::SRC_REG != 0;
    let operand = if from_register { format!("{register}{src}") } else { imm.to_string() };
    let sign = match (code & 0xf0, off) {
        (0x00, 0) => "+=",
        (0x10, 0) => "-=",
        (0x20, 0) => "*=",
        (0x30, 0) => "/=",
        (0x30, 1) => "s/=",
        (0x40, 0) => "|=",
        (0x50, 0) => "&=",
        (0x60, 0) => "<<=",
        (0x70, 0) => ">>=",
        (0x80, 0) => return Some(format!("{register}{dst} = -{register}{dst}")),
        (0x90, 0) => "%=",
        (0x90, 1) => "s%=",
        (0xa0, 0) => "^=",
        (0xb0, 0) => "=",
        (0xb0, bits @ (8 | 16 | 32)) if from_register => {
            return Some(format!("{register}{dst} = (s{bits}){register}{src}"));
        }
        (0xc0, 0) => "s>>=",
        (0xd0, 0) => {
            let order = match (register, from_register) {
                ('r', _) => "bswap",
                (_, false) => "le",
                (_, true) => "be",
            };
            return Some(format!("r{dst} = {order}{imm} r{dst}"));
        }
        _ => return None,
    };
    Some(format!("{register}{dst} {sign} {operand}"))
}

fn jump(insn: &Insn, register: char) -> Option<String> {
    let Insn { code, dst, src, off, imm } = insn;
    let sign = match (code & 0xf0, register) {
        (insn::JA, 'r') => return Some(format!("goto pc{off:+}")),
        (insn::JA, _) => return Some(format!("gotol pc{imm:+}")),
        (insn::CALL, 'r') if *src == 0 => return Some(call(*imm)),
        (insn::CALL, 'r') if *src == insn::PSEUDO_CALL => return Some(format!("call pc{imm:+}")),
        (insn::EXIT, 'r') => return Some("exit".into()),
        (0x10, _) => "==",
        (0x20, _) => ">",
        (0x30, _) => ">=",
        (0x40, _) => "&",
        (0x50, _) => "!=",
        (0x60, _) => "s>",
        (0x70, _) => "s>=",
        (0xa0, _) => "<",
        (0xb0, _) => "<=",
        (0xc0, _) => "s<",
        (0xd0, _) => "s<=",
        _ => return None,
    };
    let operand = match code & insn::SRC_REG {
        0 => format!("{imm:#x}"),
        _ => format!("{register}{src}"),
    };
    Some(format!("if {register}{dst} {sign} {operand} goto pc{off:+}"))
}

fn call(number: i32) -> String {
    format!("call {}#{number}", helper::name(number).unwrap_or("unknown"))
}
