//! Parses what a note says of a probe's arguments: operands as the assembler writes them.
//!
//! ```text
//! -4@%eax   8@$5   8@-20(%rbp)   1@8(%rax,%rbx,4)   4@total(%rip)
//! size, with a minus if it is signed; `@`; where it is
//! ```
//! Source: <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>, "Argument format".

use xputrace_bytecode::probe::pt_regs;
use xputrace_bytecode::usdt::{Argument, Operand, Register};

/// Why an argument cannot be read: its text, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) text: String,
    pub(crate) why: String,
}

/// Parses the arguments of a place. `relative` returns a variable's distance from the place.
pub(crate) fn all(text: &str, relative: &dyn Fn(&str) -> Result<i64, String>) -> Vec<Result<Argument, Unreadable>> {
    let parse = |it: &str| one(it, relative).map_err(|why| Unreadable { text: it.to_owned(), why });
    text.split_ascii_whitespace().map(parse).collect()
}

fn one(text: &str, relative: &dyn Fn(&str) -> Result<i64, String>) -> Result<Argument, String> {
    let is_size = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit() || b"-f".contains(&it));
    // `total@GOTPCREL(%rip)` has no size.
    let (size, operand) = match text.split_once('@') {
        Some((size, operand)) if is_size(size) => (Some(size), operand),
        _ => (None, text),
    };
    if size.is_some_and(|it| it.ends_with('f')) {
        return Err("it is a floating-point number".into());
    }
    let (from, natural) = operand_of(operand, relative)?;
    let (bytes, signed) = match size {
        None => (natural, false),
        Some(size) => match size.parse::<i8>() {
            Ok(it @ (1 | 2 | 4 | 8 | -1 | -2 | -4 | -8)) => (it.unsigned_abs(), it < 0),
            _ => return Err(format!("its size, `{size}`, is not 1, 2, 4 or 8 bytes")),
        },
    };
    Ok(Argument { from, bytes, signed })
}

/// Returns an operand, and its size where the note says none.
fn operand_of(text: &str, relative: &dyn Fn(&str) -> Result<i64, String>) -> Result<(Operand, u8), String> {
    const WORD: u8 = 8;
    if let Some(constant) = text.strip_prefix('$') {
        let value = number(constant).ok_or("it is the address of a variable, which only the linker knew")?;
        return Ok((Operand::Constant(value), WORD));
    }
    if let Some(name) = text.strip_prefix('%') {
        let it = register(name).ok_or_else(|| unknown(name))?;
        return Ok((Operand::Register { register: it.register, is_high: it.is_high }, it.bytes));
    }
    let (before, inside) = match text.split_once('(') {
        Some((before, rest)) => (before, rest.strip_suffix(')').ok_or("its operand is not understood")?),
        None => (text, ""),
    };
    let memory = match inside {
        "" | "%rip" => Operand::Memory {
            displacement: variable(before, relative)?,
            base: Some(Register(pt_regs::INSTRUCTION_POINTER)),
            index: None,
        },
        inside => in_registers(before, inside)?,
    };
    Ok((memory, WORD))
}

/// Parses `8(%rax,%rbx,4)`: what is before the parentheses, and what is inside.
fn in_registers(before: &str, inside: &str) -> Result<Operand, String> {
    let mut parts = inside.split(',');
    let mut named = || match parts.next().unwrap_or_default().trim() {
        "" => Ok(None),
        text => whole(text).map(Some),
    };
    let (base, index) = (named()?, named()?);
    let scale = match parts.next().map(str::trim) {
        None | Some("" | "1") => 0,
        Some("2") => 1,
        Some("4") => 2,
        Some("8") => 3,
        Some(_) => return Err("its operand is not understood".into()),
    };
    let displacement = match before {
        "" => 0,
        text => number(text).ok_or("it is in a variable whose address only the linker knew")?,
    };
    Ok(Operand::Memory { displacement, base, index: index.map(|it| (it, scale)) })
}

/// Returns the distance of `total`, `total+8` or `8+total` from the place.
fn variable(text: &str, relative: &dyn Fn(&str) -> Result<i64, String>) -> Result<i64, String> {
    let (name, plus) = with_offset(text).unwrap_or((text, 0));
    let is_name = !name.is_empty() && !name.starts_with(|it: char| it.is_ascii_digit() || it == '-');
    match name {
        _ if name.contains('@') => Err("it is in a variable that only the dynamic linker finds".into()),
        _ if name.starts_with('%') || !is_name || name.contains(['+', ':', '*']) => {
            Err("its operand is not understood".into())
        }
        name => relative(name).map(|it| it.wrapping_add(plus)),
    }
}

/// Splits a number off a variable's name, on either side.
fn with_offset(text: &str) -> Option<(&str, i64)> {
    if let Some((first, rest)) = text.split_once('+')
        && let Some(offset) = number(first)
    {
        return Some((rest, offset));
    }
    let at = text.rfind(['+', '-']).filter(|it| *it > 0)?;
    let offset = number(text[at..].trim_start_matches('+'))?;
    Some((&text[..at], offset))
}

/// Parses a number; one of 64 bits may be written without its sign.
fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |it| (true, it));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if is_negative { (value as i64).wrapping_neg() } else { value as i64 })
}

fn whole(text: &str) -> Result<Register, String> {
    let name = text.strip_prefix('%').ok_or("its operand is not understood")?;
    match register(name) {
        Some(it) if it.bytes == 8 => Ok(it.register),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    match name {
        _ if name.starts_with("xmm") || name.starts_with("st") => {
            format!("it is in %{name}, a register for floating-point numbers")
        }
        _ if name.contains(':') => "it is in a variable of the thread's own".into(),
        _ => format!("Linux does not hand out the register %{name}"),
    }
}

/// A register, or a part of one.
struct RegisterPart {
    register: Register,
    bytes: u8,
    is_high: bool,
}

/// The registers that have names of letters, in the order of `struct pt_regs`: their offsets there, and their names of 8, 4, 2
/// and 1 bytes.
const LETTERED: [(i16, [&str; 4]); 9] = [
    (pt_regs::FRAME_POINTER, ["rbp", "ebp", "bp", "bpl"]),
    (40, ["rbx", "ebx", "bx", "bl"]),
    (pt_regs::RETURN_VALUE, ["rax", "eax", "ax", "al"]),
    (88, ["rcx", "ecx", "cx", "cl"]),
    (96, ["rdx", "edx", "dx", "dl"]),
    (104, ["rsi", "esi", "si", "sil"]),
    (112, ["rdi", "edi", "di", "dil"]),
    (pt_regs::INSTRUCTION_POINTER, ["rip", "eip", "ip", ""]),
    (pt_regs::STACK_POINTER, ["rsp", "esp", "sp", "spl"]),
];
/// The offsets of `r8` to `r15` in `struct pt_regs`.
const NUMBERED: [i16; 8] = [72, 64, 56, 48, 24, 16, 8, 0];

/// Finds a register by its name without `%`.
fn register(name: &str) -> Option<RegisterPart> {
    let lettered = || {
        LETTERED.iter().find_map(|(offset, names)| {
            let at = names.iter().position(|it| !it.is_empty() && *it == name)?;
            Some(RegisterPart { register: Register(*offset), bytes: 8 >> at, is_high: false })
        })
    };
    let high = || {
        let letter = name.strip_suffix('h').filter(|it| matches!(*it, "a" | "b" | "c" | "d"))?;
        Some(RegisterPart { bytes: 1, is_high: true, ..register(&format!("r{letter}x"))? })
    };
    let numbered = || {
        let digits = name.strip_prefix('r')?;
        let end = digits.find(|it: char| !it.is_ascii_digit()).unwrap_or(digits.len());
        let offset = NUMBERED.get(digits[..end].parse::<usize>().ok()?.checked_sub(8)?)?;
        let bytes = match &digits[end..] {
            "" => 8,
            "d" => 4,
            "w" => 2,
            "b" | "l" => 1,
            _ => return None,
        };
        Some(RegisterPart { register: Register(*offset), bytes, is_high: false })
    };
    lettered().or_else(numbered).or_else(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write;

    fn distance(name: &str) -> Result<i64, String> {
        match name {
            "total" | "total.0" => Ok(0x2ed7),
            _ => Err(format!("no symbol says where `{name}` is")),
        }
    }

    /// Returns a line for each argument.
    fn parsed(texts: &str) -> String {
        let mut out = String::new();
        for argument in all(texts, &distance) {
            let _ = match argument {
                Ok(Argument { from, bytes, signed }) => {
                    writeln!(out, "{}{bytes} {}", if signed { "-" } else { "" }, shown(&from))
                }
                Err(Unreadable { text, why }) => writeln!(out, "{text}: {why}"),
            };
        }
        out
    }

    fn shown(from: &Operand) -> String {
        match from {
            Operand::Constant(value) => value.to_string(),
            Operand::Register { register, is_high } => {
                format!("regs+{}{}", register.0, if *is_high { " >> 8" } else { "" })
            }
            Operand::Memory { displacement, base, index } => {
                let base = base.map_or(String::new(), |it| format!(" + regs+{}", it.0));
                let index = index.map_or(String::new(), |(it, scale)| format!(" + (regs+{} << {scale})", it.0));
                format!("[{displacement}{base}{index}]")
            }
        }
    }

    #[test]
    fn registers_have_many_names() {
        let texts =
            "8@%rax -4@%eax 2@%ax 1@%al -1@%ah 1@%bh 8@%r8 4@%r9d 2@%r10w 1@%r15b 1@%sil 8@%rsp %edx %rbp 8@%rip";
        assert_eq!(
            parsed(texts),
            "8 regs+80\n-4 regs+80\n2 regs+80\n1 regs+80\n-1 regs+80 >> 8\n1 regs+40 >> 8\n8 regs+72\n4 regs+64\n\
             2 regs+56\n1 regs+0\n1 regs+104\n8 regs+152\n4 regs+96\n8 regs+32\n8 regs+128\n"
        );
    }

    #[test]
    fn constants_have_a_sign() {
        assert_eq!(parsed("4@$5 -4@$-5 8@$18446744073709551615 8@$0x10 $7"), "4 5\n-4 -5\n8 -1\n8 16\n8 7\n");
    }

    #[test]
    fn memory_is_found_as_an_instruction_would() {
        let texts = "8@-20(%rbp) 4@(%rdi) -2@8(%rax,%rbx,4) 1@(%rax,%rcx) 8@16(,%rdx,8) (%rsp) 4@0x10(%rsp)";
        assert_eq!(
            parsed(texts),
            "8 [-20 + regs+32]\n4 [0 + regs+112]\n-2 [8 + regs+80 + (regs+40 << 2)]\n1 [0 + regs+80 + (regs+88 << 0)]\n\
             8 [16 + (regs+96 << 3)]\n8 [0 + regs+152]\n4 [16 + regs+152]\n"
        );
    }

    #[test]
    fn variables_are_found_from_the_place() {
        let texts = "8@total(%rip) 4@total+8(%rip) 4@8+total(%rip) 4@-8+total(%rip) 4@total-4(%rip) -4@total.0 8@total";
        assert_eq!(
            parsed(texts),
            "8 [11991 + regs+128]\n4 [11999 + regs+128]\n4 [11999 + regs+128]\n4 [11983 + regs+128]\n4 [11987 + regs+128]\n\
             -4 [11991 + regs+128]\n8 [11991 + regs+128]\n"
        );
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let texts = "8f@%xmm0 4f@-8(%rbp) 8@%xmm1 3@%eax -@%eax 8@other(%rip) 8@total@GOTPCREL(%rip) 8@%fs:-8 8@$total \
                     8@total(%rax) 8@8(%eax) 8@8(%rax,%rbx,3) 8@8(%rax 8@16(%rip) 8@";
        assert_eq!(
            parsed(texts),
            "8f@%xmm0: it is a floating-point number\n4f@-8(%rbp): it is a floating-point number\n\
             8@%xmm1: it is in %xmm1, a register for floating-point numbers\n\
             3@%eax: its size, `3`, is not 1, 2, 4 or 8 bytes\n-@%eax: its size, `-`, is not 1, 2, 4 or 8 bytes\n\
             8@other(%rip): no symbol says where `other` is\n\
             8@total@GOTPCREL(%rip): it is in a variable that only the dynamic linker finds\n\
             8@%fs:-8: it is in a variable of the thread's own\n\
             8@$total: it is the address of a variable, which only the linker knew\n\
             8@total(%rax): it is in a variable whose address only the linker knew\n\
             8@8(%eax): Linux does not hand out the register %eax\n\
             8@8(%rax,%rbx,3): its operand is not understood\n8@8(%rax: its operand is not understood\n\
             8@16(%rip): its operand is not understood\n8@: its operand is not understood\n"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}", operands in "[-+0-9@$%a-z().,: ]{0,40}") {
            for text in [text, operands] {
                let found = all(&text, &distance);
                prop_assert_eq!(found.len(), text.split_ascii_whitespace().count());
            }
        }
    }
}
