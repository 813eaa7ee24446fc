//! Runs blocks of PTX without a GPU: the instructions that the translation writes, for the threads of one warp.
//!
//! Threads that are at the same instruction may take it together or apart, as the caller's schedule says; so a test can
//! try any divergence and any order of accesses. Memory is checked as a GPU does: an access that is misaligned or
//! outside is a fault.

use std::collections::HashMap;

/// Address of global memory's first byte.
pub(crate) const GLOBAL: u64 = 0x7f00_0000_0000;
/// Address of the stack in a thread's local memory.
const LOCAL: u64 = 0x40;
const DEVICE_VARIABLE: &str = "xpt_device";

/// A block, ready to run.
pub(crate) struct Code {
    instructions: Vec<Instruction>,
    n_registers: usize,
    registers: HashMap<String, usize>,
    n_local_bytes: usize,
}

struct Instruction {
    /// Register, and the value that it must have.
    guard: Option<(usize, bool)>,
    /// The name's parts: `ld`, `global`, `u64`.
    name: Vec<String>,
    operands: Vec<Operand>,
    text: String,
}

#[derive(Clone, Debug)]
enum Operand {
    Register(usize),
    Number(u64),
    /// Base register, and offset.
    Memory(usize, i64),
    /// The variable that holds the table's address.
    Variable,
    Pair(usize, usize),
    Label(usize),
    Special(String),
    /// The stack's name.
    Stack,
}

impl Code {
    pub(crate) fn parse(text: &str) -> Code {
        let mut code = Code { instructions: Vec::new(), n_registers: 0, registers: HashMap::new(), n_local_bytes: 0 };
        let mut labels = HashMap::new();
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim) {
            let line = line.trim_start_matches("{ ").trim_end_matches(" }");
            if let Some(label) = line.strip_suffix(':') {
                assert!(labels.insert(label.to_string(), lines.len()).is_none(), "{label} is placed twice");
            } else if let Some(declared) = line.strip_prefix(".local") {
                let size = declared.split(['[', ']']).nth(1).expect("has a size");
                code.n_local_bytes = size.parse().expect("is a number");
            } else if !matches!(line, "{" | "}" | "") && !line.starts_with("//") && !line.starts_with('.') {
                lines.push(line.trim_end_matches(';').to_string());
            }
        }
        for line in lines {
            let instruction = code.instruction(&line, &labels);
            code.instructions.push(instruction);
        }
        code
    }

    fn instruction(&mut self, line: &str, labels: &HashMap<String, usize>) -> Instruction {
        let (guard, rest) = match line.strip_prefix('@') {
            Some(guarded) => {
                let (guard, rest) = guarded.split_once(' ').expect("an instruction follows the guard");
                let (name, wanted) = match guard.strip_prefix('!') {
                    Some(name) => (name, false),
                    None => (guard, true),
                };
                (Some((self.register(name), wanted)), rest)
            }
            None => (None, line),
        };
        let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        let operands = operands_of(operands).iter().map(|it| self.operand(it, labels)).collect();
        let name = name.split('.').map(str::to_string).collect();
        Instruction { guard, name, operands, text: line.to_string() }
    }

    fn register(&mut self, name: &str) -> usize {
        let next = self.registers.len();
        let at = *self.registers.entry(name.to_string()).or_insert(next);
        self.n_registers = self.registers.len();
        at
    }

    fn operand(&mut self, text: &str, labels: &HashMap<String, usize>) -> Operand {
        if let Some(label) = text.strip_prefix('$') {
            return Operand::Label(*labels.get(&format!("${label}")).unwrap_or_else(|| panic!("no label {text}")));
        }
        if let Some(pair) = text.strip_prefix('{') {
            let (low, high) = pair.trim_end_matches('}').split_once(", ").expect("two");
            return Operand::Pair(self.register(low), self.register(high));
        }
        if let Some(place) = text.strip_prefix('[') {
            let place = place.trim_end_matches(']');
            if place == DEVICE_VARIABLE {
                return Operand::Variable;
            }
            let (base, offset) = place.split_once('+').unwrap_or((place, "0"));
            return Operand::Memory(self.register(base), offset.parse().expect("is an offset"));
        }
        if text == "%xpt_stack" {
            return Operand::Stack;
        }
        if text.starts_with("%xpt_") || text == "%result" {
            return Operand::Register(self.register(text));
        }
        if text.starts_with('%') {
            return Operand::Special(text.to_string());
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse::<i64>().map(|it| it as u64).ok().or_else(|| text.parse().ok()),
        };
        Operand::Number(number.unwrap_or_else(|| panic!("{text} is no operand")))
    }
}

fn operands_of(text: &str) -> Vec<String> {
    let mut operands = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
        // `a|b` sets two registers.
        if matches!(c, ',' | '|') && depth == 0 {
            operands.push(String::new());
        } else {
            operands.last_mut().expect("has one").push(c);
        }
    }
    operands.iter().map(|it| it.trim().to_string()).filter(|it| !it.is_empty()).collect()
}

/// A thread of the warp; its lane is its position in the list.
pub(crate) struct Thread {
    at: usize,
    registers: Vec<u64>,
    local: Vec<u8>,
    /// Special registers by name, `%tid.x`; others are 0.
    pub(crate) special: HashMap<String, u64>,
    /// Whether the thread was ended by `exit`.
    pub(crate) has_exited: bool,
}

impl Thread {
    pub(crate) fn result(&self, code: &Code) -> u64 {
        self.registers[code.registers["%result"]]
    }
}

/// Threads that run a block, and the memory that they share.
pub(crate) struct Warp<'a> {
    pub(crate) code: &'a Code,
    pub(crate) threads: Vec<Thread>,
    pub(crate) global: Vec<u8>,
    /// What the module's variable holds.
    pub(crate) table: u64,
    /// Instructions executed, of all threads.
    pub(crate) n_steps: u64,
}

impl<'a> Warp<'a> {
    pub(crate) fn new(code: &'a Code, n_threads: usize, global: Vec<u8>) -> Self {
        let thread = |_| Thread {
            at: 0,
            // Whatever is in registers that nothing set.
            registers: vec![0xdead_beef_dead_beef; code.n_registers],
            local: vec![0xa5; code.n_local_bytes],
            special: HashMap::new(),
            has_exited: false,
        };
        Warp { code, threads: (0..n_threads).map(thread).collect(), global, table: GLOBAL, n_steps: 0 }
    }

    /// Sets a register that the block expects from the code around it.
    pub(crate) fn set_register(&mut self, lane: usize, name: &str, value: u64) {
        if let Some(at) = self.code.registers.get(name) {
            self.threads[lane].registers[*at] = value;
        }
    }

    fn is_running(&self, lane: usize) -> bool {
        self.threads[lane].at < self.code.instructions.len() && !self.threads[lane].has_exited
    }

    /// Runs all threads to their ends. `choose` picks one of so many threads, and whether those at the same instruction
    /// go along.
    pub(crate) fn run(&mut self, mut choose: impl FnMut(usize) -> (usize, bool)) {
        while self.advance(&mut choose) {}
    }

    /// Executes one instruction; returns false when all threads have ended.
    pub(crate) fn advance(&mut self, choose: &mut impl FnMut(usize) -> (usize, bool)) -> bool {
        let running: Vec<usize> = (0..self.threads.len()).filter(|it| self.is_running(*it)).collect();
        if running.is_empty() {
            return false;
        }
        assert!(self.n_steps < 50_000_000, "runs for ever");
        let (index, together) = choose(running.len());
        self.step(&running, running[index], together);
        true
    }

    /// Runs threads one after another.
    pub(crate) fn run_in_turn(&mut self) {
        self.run(|_| (0, false));
    }

    fn step(&mut self, running: &[usize], lane: usize, together: bool) {
        let at = self.threads[lane].at;
        let beside = |warp: &Self| running.iter().copied().filter(|it| warp.threads[*it].at == at).collect::<Vec<_>>();
        let code = self.code;
        let instruction = &code.instructions[at];
        let mut lanes = if together { beside(self) } else { vec![lane] };
        if instruction.name.iter().any(|it| it == "sync") {
            // All threads of the mask have to be there; if they aren't, others go first.
            let mask = self.value(lane, instruction.operands.last().expect("has a mask"));
            lanes = beside(self).into_iter().filter(|it| mask >> it & 1 == 1).collect();
            if lanes.len() != mask.count_ones() as usize {
                assert!(running.len() > lanes.len(), "waits for ever for other threads: {}", instruction.text);
                return;
            }
        }
        self.n_steps += lanes.len() as u64;
        let mask = lanes.iter().fold(0u64, |mask, it| mask | 1 << it);
        let snapshot: Vec<Vec<u64>> = match instruction.name[0].as_str() {
            "shfl" | "match" | "redux" => self.threads.iter().map(|it| it.registers.clone()).collect(),
            _ => Vec::new(),
        };
        for lane in lanes {
            self.threads[lane].at += 1;
            if let Some((register, wanted)) = instruction.guard
                && (self.threads[lane].registers[register] & 1 == 1) != wanted
            {
                continue;
            }
            self.execute(lane, instruction, mask, &snapshot);
        }
    }

    fn value(&self, lane: usize, operand: &Operand) -> u64 {
        let thread = &self.threads[lane];
        match operand {
            Operand::Register(at) => thread.registers[*at],
            Operand::Number(value) => *value,
            Operand::Special(name) => match name.as_str() {
                "%laneid" => lane as u64,
                "%lanemask_lt" => (1 << lane) - 1,
                name => thread.special.get(name).copied().unwrap_or(0),
            },
            Operand::Stack => LOCAL,
            other => panic!("{other:?} is no value"),
        }
    }

    fn set(&mut self, lane: usize, operand: &Operand, value: u64) {
        match operand {
            Operand::Register(at) => self.threads[lane].registers[*at] = value,
            Operand::Pair(low, high) => {
                self.threads[lane].registers[*low] = u64::from(value as u32);
                self.threads[lane].registers[*high] = value >> 32;
            }
            other => panic!("{other:?} can't be set"),
        }
    }

    /// Returns the bytes that an operand names.
    fn bytes(&mut self, lane: usize, space: &str, place: &Operand, n_bytes: usize, text: &str) -> &mut [u8] {
        let Operand::Memory(base, offset) = place else { panic!("{place:?} is no place: {text}") };
        let address = self.threads[lane].registers[*base].wrapping_add(*offset as u64);
        assert!(address.is_multiple_of(n_bytes as u64), "misaligned address {address:#x}: {text}");
        let (memory, start) = match space {
            "local" => (&mut self.threads[lane].local, LOCAL),
            _ => (&mut self.global, GLOBAL),
        };
        let at = address.wrapping_sub(start) as usize;
        let bytes = at.checked_add(n_bytes).and_then(|end| memory.get_mut(at..end));
        bytes.unwrap_or_else(|| panic!("address {address:#x} is outside of {space} memory: {text}"))
    }

    fn execute(&mut self, lane: usize, instruction: &Instruction, mask: u64, snapshot: &[Vec<u64>]) {
        let name: Vec<&str> = instruction.name.iter().map(String::as_str).collect();
        let (operands, text) = (&instruction.operands, instruction.text.as_str());
        let kind = *name.last().expect("has one");
        let argument = |warp: &Self, at: usize| warp.value(lane, &operands[at]);
        match name[0] {
            "bra" => {
                let Operand::Label(to) = &operands[0] else { panic!("{text}") };
                self.threads[lane].at = *to;
            }
            "exit" => self.threads[lane].has_exited = true,
            "fence" | "membar" | "nanosleep" => {}
            "ld" if matches!(operands[1], Operand::Variable) => self.set(lane, &operands[0], self.table),
            "ld" => {
                let n_bytes = bits(kind) / 8;
                let bytes = self.bytes(lane, space(&name), &operands[1], n_bytes, text);
                let value = extended(number(bytes), kind);
                self.set(lane, &operands[0], value);
            }
            "st" => {
                let n_bytes = bits(kind) / 8;
                let value = match &operands[1] {
                    Operand::Pair(a, b) => {
                        let (a, b) = (self.threads[lane].registers[*a], self.threads[lane].registers[*b]);
                        [a.to_le_bytes(), b.to_le_bytes()].concat()
                    }
                    value => self.value(lane, value).to_le_bytes()[..n_bytes].to_vec(),
                };
                self.bytes(lane, space(&name), &operands[0], value.len(), text).copy_from_slice(&value);
            }
            "atom" | "red" => self.atomic(lane, &name, operands, text),
            "mov" => {
                let value = match &operands[1] {
                    Operand::Pair(low, high) => {
                        let registers = &self.threads[lane].registers;
                        u64::from(registers[*low] as u32) | registers[*high] << 32
                    }
                    value => self.value(lane, value),
                };
                self.set(lane, &operands[0], narrowed(value, kind));
            }
            "activemask" => self.set(lane, &operands[0], mask),
            "shfl" => {
                let source = argument(self, 2) as usize;
                let Operand::Register(from) = operands[1] else { panic!("{text}") };
                assert!(mask >> source & 1 == 1, "shuffles from a thread that isn't there: {text}");
                self.set(lane, &operands[0], snapshot[source][from]);
            }
            "match" => {
                let at = operands.len() - 2;
                let Operand::Register(from) = operands[at] else { panic!("{text}") };
                let own = snapshot[lane][from];
                let peers = (0..64).filter(|it| mask >> it & 1 == 1 && snapshot[*it][from] == own);
                let peers = peers.fold(0, |peers, it| peers | 1 << it);
                match name[1] {
                    "any" => self.set(lane, &operands[0], peers),
                    _ => {
                        self.set(lane, &operands[0], if peers == mask { mask } else { 0 });
                        self.set(lane, &operands[1], (peers == mask).into());
                    }
                }
            }
            "redux" => {
                let Operand::Register(from) = operands[1] else { panic!("{text}") };
                let lanes = (0..64).filter(|it| mask >> it & 1 == 1);
                let sum = lanes.fold(0u32, |sum, it| sum.wrapping_add(snapshot[it][from] as u32));
                self.set(lane, &operands[0], sum.into());
            }
            "cvt" => {
                let value = extended(argument(self, 1), kind);
                self.set(lane, &operands[0], narrowed(value, name[1]));
            }
            "setp" => {
                let holds = compared(name[1], kind, argument(self, 1), argument(self, 2));
                self.set(lane, &operands[0], holds.into());
            }
            "selp" => {
                let chosen = if argument(self, 3) & 1 == 1 { 1 } else { 2 };
                let value = narrowed(argument(self, chosen), kind);
                self.set(lane, &operands[0], value);
            }
            _ => {
                let arguments: Vec<u64> = (1..operands.len()).map(|it| argument(self, it)).collect();
                let value = computed(&name, &arguments).unwrap_or_else(|| panic!("unknown instruction: {text}"));
                self.set(lane, &operands[0], value);
            }
        }
    }

    fn atomic(&mut self, lane: usize, name: &[&str], operands: &[Operand], text: &str) {
        let kind = name[name.len() - 1];
        let fetches = name[0] == "atom";
        let (place, rest) = if fetches { (&operands[1], &operands[2..]) } else { (&operands[0], &operands[1..]) };
        let arguments: Vec<u64> = rest.iter().map(|it| narrowed(self.value(lane, it), kind)).collect();
        let n_bytes = bits(kind) / 8;
        let bytes = self.bytes(lane, "global", place, n_bytes, text);
        let old = number(bytes);
        let new = match name[name.len() - 2] {
            "add" => old.wrapping_add(arguments[0]),
            "or" => old | arguments[0],
            "and" => old & arguments[0],
            "xor" => old ^ arguments[0],
            "exch" => arguments[0],
            "max" => old.max(arguments[0]),
            "cas" if old == arguments[0] => arguments[1],
            "cas" => old,
            other => panic!("unknown operation {other}: {text}"),
        };
        bytes.copy_from_slice(&new.to_le_bytes()[..n_bytes]);
        if fetches {
            self.set(lane, &operands[0], old);
        }
    }
}

fn space(name: &[&str]) -> &'static str {
    if name.contains(&"local") { "local" } else { "global" }
}

fn bits(kind: &str) -> usize {
    kind[1..].parse().unwrap_or_else(|_| panic!("{kind} is no type"))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Extends a value of a type to 64 bits.
fn extended(value: u64, kind: &str) -> u64 {
    let shift = 64 - bits(kind) as u32;
    match kind.starts_with('s') {
        true => ((value << shift) as i64 >> shift) as u64,
        false => value << shift >> shift,
    }
}

fn narrowed(value: u64, kind: &str) -> u64 {
    if bits(kind) == 64 { value } else { value & ((1 << bits(kind)) - 1) }
}

fn compared(test: &str, kind: &str, a: u64, b: u64) -> bool {
    let (a, b) = (extended(a, kind), extended(b, kind));
    let order = if kind.starts_with('s') { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
    match test {
        "eq" => order.is_eq(),
        "ne" => order.is_ne(),
        "lt" => order.is_lt(),
        "le" => order.is_le(),
        "gt" => order.is_gt(),
        "ge" => order.is_ge(),
        other => panic!("unknown comparison {other}"),
    }
}

/// Computes an instruction without memory. What PTX leaves undefined is a panic.
fn computed(name: &[&str], arguments: &[u64]) -> Option<u64> {
    let kind = name[name.len() - 1];
    if kind == "pred" {
        return Some(match name[0] {
            "or" => arguments[0] | arguments[1],
            _ => return None,
        });
    }
    let n = bits(kind) as u32;
    let a = extended(arguments[0], kind);
    let b = arguments.get(1).map(|it| extended(*it, kind)).unwrap_or(0);
    let amount = arguments.get(1).map(|it| *it as u32).unwrap_or(0);
    let value = match (name[0], name[1]) {
        ("add", _) => a.wrapping_add(b),
        ("sub", _) => a.wrapping_sub(b),
        ("mul", "lo") => a.wrapping_mul(b),
        ("mul", "wide") => return Some(a.wrapping_mul(b)),
        ("mad", "lo") => a.wrapping_mul(b).wrapping_add(arguments[2]),
        ("mad", "wide") => return Some(a.wrapping_mul(b).wrapping_add(arguments[2])),
        ("div" | "rem", _) => divided(name[0] == "rem", kind, a, b),
        ("neg", _) => a.wrapping_neg(),
        ("and", _) => a & b,
        ("or", _) => a | b,
        ("xor", _) => a ^ b,
        ("shl", _) => a.checked_shl(amount).unwrap_or(0),
        ("shr", _) if kind.starts_with('s') => ((a as i64) >> amount.min(63)) as u64,
        ("shr", _) => a.checked_shr(amount).unwrap_or(0),
        ("bfe", _) => extract(kind, arguments[0], arguments[1] as u32, arguments[2] as u32),
        ("bfi", _) => {
            let field = (u64::MAX >> (64 - arguments[3])) << arguments[2];
            arguments[1] & !field | arguments[0] << arguments[2] & field
        }
        ("prmt", _) => permuted(arguments),
        ("popc", _) => a.count_ones().into(),
        ("bfind", _) => u64::from(63 - a.leading_zeros()),
        _ => return None,
    };
    Some(if n == 64 { value } else { value & ((1 << n) - 1) })
}

fn divided(remainder: bool, kind: &str, a: u64, b: u64) -> u64 {
    assert!(b != 0, "divides by 0");
    match (kind.starts_with('s'), remainder) {
        (true, true) => (a as i64).checked_rem(b as i64).expect("the quotient fits") as u64,
        (true, false) => (a as i64).checked_div(b as i64).expect("the quotient fits") as u64,
        (false, true) => a % b,
        (false, false) => a / b,
    }
}

fn extract(kind: &str, value: u64, at: u32, n: u32) -> u64 {
    assert!(n > 0 && at + n <= 64, "extracts bits that aren't there");
    let left = value << (64 - at - n);
    match kind.starts_with('s') {
        true => ((left as i64) >> (64 - n)) as u64,
        false => left >> (64 - n),
    }
}

fn permuted(arguments: &[u64]) -> u64 {
    let bytes = arguments[0] & 0xffff_ffff | arguments[1] << 32;
    (0..4).fold(0, |value, at| value | (bytes >> (8 * (arguments[2] >> (4 * at) & 7)) & 0xff) << (8 * at))
}
