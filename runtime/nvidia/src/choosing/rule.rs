//! The rule: which way is chosen by what is known, and how that is said.

use std::collections::BTreeSet;
use xputrace_model::plan::{DeviceWay, KernelPattern};
use xputrace_rendezvous::Chosen;

/// Patterns that a text names.
const MOST_PATTERNS: usize = 3;

/// What decides.
#[derive(Clone, Debug)]
pub struct WayFacts<'a> {
    /// The kernels that handlers name.
    pub patterns: &'a BTreeSet<KernelPattern>,
    /// How many those are in the files of the process; `None` if the files could not be searched in time.
    pub named: Option<Named>,
    /// The GPUs' compute capability, if it is known.
    pub gpu: Option<u32>,
    /// What the script has that patches can't do.
    pub unpatchable: Option<&'a str>,
    /// Why no machine code can be patched in this process.
    pub no_patches: Option<&'a str>,
    /// Whether patches would take the times of kernels.
    pub takes_times: bool,
    /// Whether handlers are a script's, which can say the way itself.
    pub is_script: bool,
}

/// How many kernels are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Those that have PTX that the GPU can use.
    pub n_with_ptx: usize,
    pub n_without: usize,
}

/// Chooses: patches where kernels are named, none of them has PTX, and patches can run the handlers. Else twins, beside which
/// CUPTI goes on.
pub fn choose(facts: &WayFacts<'_>) -> Chosen {
    let (way, note) = match facts.named {
        None => (DeviceWay::Twin, facts.not_searched()),
        Some(Named { n_with_ptx: 0, n_without: 0 }) => (DeviceWay::Twin, facts.none_named()),
        Some(Named { n_with_ptx: 0, n_without }) => match facts.hindrance() {
            None => (DeviceWay::Patch, facts.patched(n_without)),
            Some(why) => (DeviceWay::Twin, facts.not_patched(n_without, why)),
        },
        Some(Named { n_with_ptx, n_without: 0 }) => (DeviceWay::Twin, facts.all_have_ptx(n_with_ptx)),
        Some(named) => (DeviceWay::Twin, facts.some_have_ptx(named)),
    };
    Chosen { way, note: Some(note) }
}

impl WayFacts<'_> {
    /// Returns why patches would be of no use.
    fn hindrance(&self) -> Option<&str> {
        self.unpatchable.or(self.no_patches)
    }

    fn not_searched(&self) -> String {
        format!(
            "kernels get twins: there was no time to search all of its files for kernels that match {}{}",
            self.patterns(),
            self.insisting("; ", "takes patches")
        )
    }

    fn none_named(&self) -> String {
        format!(
            "kernels get twins: none of its files has a kernel that matches {}{}",
            self.patterns(),
            self.insisting(". ", "reaches one that is loaded later and has no PTX")
        )
    }

    fn patched(&self, n: usize) -> String {
        let keeps = if self.is_script { ": `#{via: \"twin\"}` keeps it, without the handlers" } else { "" };
        let times = if self.takes_times { ". Times of kernels contain what patches take" } else { "" };
        format!("kernels are patched, because {}; CUPTI is off in this process{keeps}{times}", self.none_has_ptx(n))
    }

    fn not_patched(&self, n: usize, why: &str) -> String {
        let what_to_do = match self.unpatchable {
            Some(_) => ". A script without that reaches them",
            None => "",
        };
        format!(
            "kernels get twins, and no handler runs in those that match, because {}. They are not patched either: \
             {why}{what_to_do}",
            self.none_has_ptx(n)
        )
    }

    fn all_have_ptx(&self, n: usize) -> String {
        let all = if n == 1 { "the kernel that matches".into() } else { format!("each of the {n} kernels that match") };
        format!("kernels get twins: {all} {} has PTX{}", self.patterns(), of_gpu(self.gpu))
    }

    fn some_have_ptx(&self, Named { n_with_ptx, n_without }: Named) -> String {
        let n = n_with_ptx + n_without;
        let others = match self.hindrance() {
            Some(why) => format!("; patches can't: {why}"),
            None => self.insisting(": ", "reaches them, and a pattern that names them alone chooses it"),
        };
        format!(
            "kernels get twins: {n_with_ptx} of the {n} kernels that match {} have PTX{}. No handler runs in the other \
             {n_without}{others}",
            self.patterns(),
            of_gpu(self.gpu)
        )
    }

    /// Says how the script insists on patches, and what that does; nothing where it can't.
    fn insisting(&self, before: &str, does: &str) -> String {
        match self.is_script && self.hindrance().is_none() {
            true => format!("{before}`#{{via: \"patch\"}}` {does}"),
            false => String::new(),
        }
    }

    fn none_has_ptx(&self, n: usize) -> String {
        match n {
            1 => format!("the kernel that matches {} has no PTX{}", self.patterns(), of_gpu(self.gpu)),
            n => format!("none of the {n} kernels that match {} has PTX{}", self.patterns(), of_gpu(self.gpu)),
        }
    }

    fn patterns(&self) -> String {
        let named: Vec<String> =
            self.patterns.iter().take(MOST_PATTERNS).map(|it| format!("`{}`", it.text())).collect();
        let more = if self.patterns.len() > MOST_PATTERNS { " and others" } else { "" };
        format!("{}{more}", named.join(", "))
    }
}

/// Says for which GPUs PTX is or is not, behind `PTX`; nothing where that is not known.
pub fn of_gpu(gpu: Option<u32>) -> String {
    gpu.map_or(String::new(), |it| format!(" for sm_{it}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MEMCPY: &str = "`memcpy` needs CUPTI, which can't be used in a process whose kernels are patched";
    const NO_API: &str =
        "patching kernels needs NVIDIA's Sanitizer API, and libsanitizer-public.so is not in a toolkit or wheel";

    fn facts(patterns: &BTreeSet<KernelPattern>) -> WayFacts<'_> {
        WayFacts {
            patterns,
            named: None,
            gpu: Some(90),
            unpatchable: None,
            no_patches: None,
            takes_times: false,
            is_script: true,
        }
    }

    /// Each case, and what is chosen and said.
    #[test]
    fn the_rule_is_as_it_is_written_down() {
        let patterns = ["*nvjet*"].map(KernelPattern::new).into();
        let many = ["a", "b", "c", "d"].map(KernelPattern::new).into();
        let facts = facts(&patterns);
        let mut text = String::new();
        let mut case = |name: &str, facts: &WayFacts<'_>| {
            let counted = [(0, 0), (1, 0), (3, 0), (0, 1), (0, 14), (3, 14)].map(Some);
            text += &format!("{name}\n");
            for counts in [None].into_iter().chain(counted) {
                let named = counts.map(|(n_with_ptx, n_without)| Named { n_with_ptx, n_without });
                let Chosen { way, note } = choose(&WayFacts { named, ..facts.clone() });
                let counts = counts.map_or("not searched".into(), |it| format!("{} with PTX, {} without", it.0, it.1));
                text += &format!("  {counts}\n    {way:?}: {}\n", note.unwrap_or_default());
            }
        };
        case("a script that patches can run", &facts);
        case("a script that patches can't run", &WayFacts { unpatchable: Some(MEMCPY), ..facts.clone() });
        case("a process without the Sanitizer API", &WayFacts { no_patches: Some(NO_API), ..facts.clone() });
        case("a script with kernel handlers", &WayFacts { takes_times: true, ..facts.clone() });
        case("a compiled object", &WayFacts { is_script: false, ..facts.clone() });
        case("GPUs that differ, and many patterns", &WayFacts { patterns: &many, gpu: None, ..facts.clone() });
        xputrace_golden::assert(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/choices.txt"), &text);
    }
}
