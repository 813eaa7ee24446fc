//! Counts how twins were compiled, and words it.

use super::made::{Compiled, TwinCode, WhyText};
use std::collections::BTreeMap;
use xputrace_cubins::{Cubin, Ptxas, Usage};
use xputrace_render::counted;

/// What notes call programs that run in kernels of their own.
const PROGRAMS: &str = "the programs of kprobe/__directly_run";

/// How the twins of a run were compiled.
#[derive(Debug, Default)]
pub struct Tally {
    /// By what has compiled them.
    cubins: BTreeMap<String, OfCubins>,
    /// By why the driver compiled them.
    texts: BTreeMap<String, u64>,
    /// What has compiled the patches, if there are any, and whether they take the times of kernels.
    patches: Option<(String, bool)>,
    /// What has compiled the programs that run in kernels of their own.
    programs: Option<String>,
}

#[derive(Debug, Default)]
struct OfCubins {
    n: u64,
    n_kept: u64,
    most_registers: u32,
    most_spilled_bytes: u32,
}

impl Tally {
    /// Counts a twin of these kernels; returns what is to be said of it alone.
    pub fn add(&mut self, code: &TwinCode, kernels: &[String]) -> Vec<String> {
        match code {
            TwinCode::Cubin(Compiled { cubin, unkept }) => {
                self.add_cubin(cubin);
                unkept.iter().map(|it| format!("the next run compiles twins of kernels again: {it}")).collect()
            }
            TwinCode::Text(why) => {
                *self.texts.entry(reason(why)).or_default() += 1;
                failure(why, kernels).into_iter().collect()
            }
        }
    }

    /// Counts patches, which are compiled once for all modules; returns what is to be said of them alone.
    pub fn add_patches(&mut self, Compiled { cubin, unkept }: &Compiled, take_times: bool) -> Vec<String> {
        let patches = (called(&cubin.by), take_times);
        if self.patches.replace(patches).is_some() {
            return Vec::new();
        }
        unkept.iter().map(|it| format!("the next run compiles patches of kernels again: {it}")).collect()
    }

    /// Counts programs that run in kernels of their own; returns what is to be said of them alone.
    pub fn add_programs(&mut self, code: &TwinCode) -> Vec<String> {
        let (by, said) = match code {
            TwinCode::Cubin(Compiled { cubin, unkept }) => {
                let said = unkept.iter().map(|it| format!("the next run compiles {PROGRAMS} again: {it}")).collect();
                (called(&cubin.by), said)
            }
            TwinCode::Text(WhyText::Failed(why)) => {
                let said = format!("ptxas does not compile {PROGRAMS}, the driver compiles them instead: {why}");
                ("the driver".to_owned(), vec![said])
            }
            TwinCode::Text(_) => ("the driver".to_owned(), vec![]),
        };
        self.programs = Some(by);
        said
    }

    fn add_cubin(&mut self, Cubin { usage, by, is_kept, .. }: &Cubin) {
        let of = self.cubins.entry(called(by)).or_default();
        let most = |of: fn(&Usage) -> u32| usage.iter().map(of).max().unwrap_or(0);
        of.n += 1;
        of.n_kept += u64::from(*is_kept);
        of.most_registers = of.most_registers.max(most(|it| it.registers));
        of.most_spilled_bytes = of.most_spilled_bytes.max(most(|it| it.spill_store_bytes.max(it.spill_load_bytes)));
    }

    /// Says of all of them how they were compiled.
    pub fn notes(&self) -> Vec<String> {
        let twins = |n: u64| counted(n, "twin", "twins");
        let by_ptxas = self.cubins.iter().map(|(ptxas, of)| {
            let kept = if of.n_kept == 0 { String::new() } else { format!(" ({} in an earlier run)", of.n_kept) };
            let spilled = match of.most_spilled_bytes {
                0 => String::new(),
                bytes => format!(", and spill up to {bytes} bytes"),
            };
            let registers = of.most_registers;
            format!("{ptxas} compiled {}{kept}: their kernels use up to {registers} registers{spilled}", twins(of.n))
        });
        let by_driver = self.texts.iter().map(|(why, n)| format!("the driver compiled {}: {why}", twins(*n)));
        let patches = self.patches.iter().map(|(ptxas, take_times)| {
            let instead = match take_times {
                true => {
                    "kernels' times were taken in them, from the first block's beginning, some 0.6 us after CUPTI's, to the last \
                     thread's end"
                }
                false => "no kernel, launch or other event of the GPU was recorded",
            };
            format!("{ptxas} compiled the patches; CUPTI was off, so {instead}")
        });
        let programs = self.programs.iter().map(|by| format!("{by} compiled {PROGRAMS}"));
        by_ptxas.chain(by_driver).chain(patches).chain(programs).collect()
    }
}

/// Returns what notes call a `ptxas`.
fn called(ptxas: &Ptxas) -> String {
    format!("ptxas {} ({})", ptxas.version, ptxas.path.display())
}

pub fn reason(why: &WhyText) -> String {
    match why {
        WhyText::Gpus => "the program's GPUs are of different kinds, or of an unknown one".into(),
        WhyText::OtherUser(uid) => format!("the program belongs to user {uid}, whom xputrace can't become"),
        WhyText::NoPtxas(reasons) if reasons.is_empty() => {
            "no ptxas was found, nor does XPUTRACE_PTXAS name one".into()
        }
        WhyText::NoPtxas(reasons) => format!("no ptxas can: {}", reasons.join("; ")),
        WhyText::Failed(_) => "ptxas failed".into(),
    }
}

/// Says why there are no patches, which the driver can't compile.
pub fn lacking_for_patches(why: &WhyText) -> String {
    format!("patches of machine code need a ptxas: {}", reason(why))
}

/// Says what a ptxas found wrong with a twin.
fn failure(why: &WhyText, kernels: &[String]) -> Option<String> {
    let WhyText::Failed(why) = why else { return None };
    let name = |it: &String| xputrace_symbols::demangle(it).name.to_string();
    let first = kernels.first().map(name).unwrap_or_default();
    let more = if kernels.len() > 1 { format!(" and {} more", kernels.len() - 1) } else { String::new() };
    Some(format!("ptxas does not compile the twin of {first}{more}, the driver compiles it instead: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use xputrace_cubins::StackUsage;

    fn cubin(is_kept: bool, registers: u32, spill_load_bytes: u32) -> TwinCode {
        let usage = vec![Usage { registers, spill_load_bytes, ..Usage::default() }];
        let by = Arc::new(Ptxas::new("/a/ptxas".into(), "13.0.88"));
        TwinCode::Cubin(Compiled {
            cubin: Cubin { code: vec![], usage, frames: StackUsage::new(), by, is_kept, unkept: None },
            unkept: None,
        })
    }

    #[test]
    fn what_compiled_twins_is_said_once() {
        let mut tally = Tally::default();
        assert_eq!(tally.notes(), <[String; 0]>::default());
        for code in [cubin(false, 30, 0), cubin(true, 40, 0), TwinCode::Text(WhyText::NoPtxas(vec![]))] {
            assert_eq!(tally.add(&code, &[]), <[String; 0]>::default());
        }
        let ptxas =
            "ptxas 13.0.88 (/a/ptxas) compiled 2 twins (1 in an earlier run): their kernels use up to 40 registers";
        let driver = "the driver compiled 1 twin: no ptxas was found, nor does XPUTRACE_PTXAS name one";
        assert_eq!(tally.notes(), [ptxas, driver]);
        tally.add(&cubin(false, 255, 16), &[]);
        assert!(
            tally.notes()[0]
                .ends_with("(1 in an earlier run): their kernels use up to 255 registers, and spill up to 16 bytes")
        );
    }

    #[test]
    fn a_failure_is_said_with_its_kernel() {
        let kernels = ["_Z5scalePf".to_owned(), "other".to_owned()];
        let said =
            Tally::default().add(&TwinCode::Text(WhyText::Failed("line 7: Unknown symbol 'y'".into())), &kernels);
        let expected = "ptxas does not compile the twin of scale and 1 more, the driver compiles it instead: \
                        line 7: Unknown symbol 'y'";
        assert_eq!(said, [expected]);
    }
}
