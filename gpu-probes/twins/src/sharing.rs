//! Functions that several kernels call. Those whose handlers differ there get a copy each, as a function doesn't know which kernel
//! has called it.

use crate::NoTwin;
use crate::handler::{Wanted, places_of};
use crate::kernels::{Shared, SharedFunction};
use crate::maker::Maker;
use crate::refusal::{Failure, MOST_COPIES, Refused};
use std::collections::{BTreeMap, BTreeSet};
use xputrace_events::DeviceEvent;
use xputrace_ptx::{Calls, Module, WeaveError};

/// What the code of a function, and of those that it calls, depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Variant {
    /// Those that run there, in their order.
    handlers: Vec<usize>,
    /// The kernel that calls it, if they read its name.
    kernel: Option<String>,
}

/// A function, or a copy of one.
struct Made {
    /// As the twin calls it.
    name: String,
    /// The first kernel that calls it.
    kernel: String,
}

/// What was found so far.
#[derive(Default)]
struct Sharing {
    /// By the function's name in the original.
    made: BTreeMap<String, BTreeMap<Variant, Made>>,
    n_copies: usize,
}

impl Maker {
    /// Makes the copies that the kernels of a twin need; the module has nothing else.
    ///
    /// # Errors
    /// They are too many: those are refused that come last.
    pub(crate) fn share(&self, module: &mut Module, kernels: &BTreeMap<String, Wanted>) -> Result<Shared, Failure> {
        let calls = module.calls();
        let places = places_in_functions(module, kernels)?;
        let taken: BTreeSet<String> = module.functions().map(|it| it.name.clone()).collect();
        let variants = |kernel: &str, wanted: &Wanted| {
            let of = |it: &&str| ((*it).to_owned(), self.variant(kernel, wanted, &places_below(it, &calls, &places)));
            calls.below(kernel).iter().map(of).collect::<BTreeMap<_, _>>()
        };
        let of_kernels: BTreeMap<&str, _> =
            kernels.iter().map(|(kernel, wanted)| (kernel.as_str(), variants(kernel, wanted))).collect();
        let (mut sharing, mut refused) = (Sharing::default(), Refused::new());
        for (kernel, variants) in &of_kernels {
            if !sharing.add(kernel, variants, &taken) {
                refused.insert((*kernel).to_owned(), NoTwin::Copies);
            }
        }
        if !refused.is_empty() {
            return Err(Failure::Of(refused));
        }
        sharing.copy(module, &calls, &of_kernels);
        Ok(sharing.into_shared())
    }

    /// Returns what code depends on that has these places, where this kernel calls it.
    fn variant(&self, kernel: &str, wanted: &Wanted, places: &[DeviceEvent]) -> Variant {
        let is_there = |it: &usize| places.contains(&self.place(*it));
        let handlers: Vec<usize> = wanted.handlers.iter().copied().filter(is_there).collect();
        let kernel = handlers.iter().any(|it| self.reads_name(*it)).then(|| kernel.to_owned());
        Variant { handlers, kernel }
    }
}

impl Sharing {
    /// Adds what a kernel calls; returns whether there is room for the copies that it needs.
    fn add(&mut self, kernel: &str, variants: &BTreeMap<String, Variant>, taken: &BTreeSet<String>) -> bool {
        let is_new = |(function, variant): &(&String, &Variant)| {
            self.made.get(*function).is_some_and(|it| !it.contains_key(*variant))
        };
        let n_new = variants.iter().filter(is_new).count();
        if self.n_copies + n_new > MOST_COPIES {
            return false;
        }
        self.n_copies += n_new;
        for (function, variant) in variants {
            let made = self.made.entry(function.clone()).or_default();
            let name = match made.len() {
                0 => function.clone(),
                n => copy_name(function, n, taken),
            };
            made.entry(variant.clone()).or_insert_with(|| Made { name, kernel: kernel.to_owned() });
        }
        true
    }

    fn into_shared(self) -> Shared {
        let mut shared = Shared::new();
        for (original, made) in self.made {
            let function = |Made { name, kernel }| (name, SharedFunction { kernel, original: original.clone() });
            shared.extend(made.into_values().map(function));
        }
        shared
    }

    /// Adds the copies to the module, and has everyone call their own.
    fn copy(&self, module: &mut Module, calls: &Calls, of_kernels: &BTreeMap<&str, BTreeMap<String, Variant>>) {
        if self.n_copies == 0 {
            return;
        }
        let all = || self.made.iter().flat_map(|(function, it)| it.values().map(move |it| (function, it)));
        all().filter(|it| *it.0 != it.1.name).for_each(|(function, it)| module.copy_function(function, &it.name));
        let mut call_own = |name: &str, function: &str, kernel: &str| {
            let variants = &of_kernels[kernel];
            let own = |it: &&str| Some(((*it).to_owned(), self.made.get(*it)?.get(variants.get(*it)?)?.name.clone()));
            module.call_instead(name, &calls.below(function).iter().filter_map(own).collect());
        };
        all().for_each(|(function, Made { name, kernel })| call_own(name, function, kernel));
        of_kernels.keys().for_each(|it| call_own(it, it, it));
    }
}

/// Returns the events at places of each function that is no kernel.
fn places_in_functions(
    module: &Module,
    kernels: &BTreeMap<String, Wanted>,
) -> Result<BTreeMap<String, Vec<DeviceEvent>>, WeaveError> {
    let mut all: BTreeMap<String, Vec<DeviceEvent>> = BTreeMap::new();
    // Alone, a kernel shares nothing.
    if kernels.len() > 1 {
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        module.clone().weave(&names, &mut |site| {
            if !kernels.contains_key(site.function) {
                let known = all.entry(site.function.to_owned()).or_default();
                known.extend(places_of(site).iter().filter(|it| !known.contains(it)).copied().collect::<Vec<_>>());
            }
            None
        })?;
    }
    Ok(all)
}

/// Returns the events in a function and in those that it calls.
fn places_below(function: &str, calls: &Calls, places: &BTreeMap<String, Vec<DeviceEvent>>) -> Vec<DeviceEvent> {
    let below = calls.below(function);
    below.into_iter().chain([function]).filter_map(|it| places.get(it)).flatten().copied().collect()
}

/// Returns the name of a function's copy with this number, or a later one if the module has that.
fn copy_name(function: &str, n: usize, taken: &BTreeSet<String>) -> String {
    let name = format!("{function}$xpt{n}");
    if taken.contains(&name) { copy_name(&name, n, taken) } else { name }
}
