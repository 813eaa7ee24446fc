//! What a kernel's threads keep in registers until they end: see [`xputrace_device::sums`].

use crate::NoTwin;
use crate::handler::{Origin, keeps, places_of, switch_of};
use crate::kernels::Kernels;
use crate::maker::Maker;
use crate::refusal::{Failure, Refused};
use crate::spot::Spot;
use crate::words::together_again;
use std::collections::BTreeMap;
use xputrace_device::{Options, Refusal, Request, Sum, Sums, TableAt};
use xputrace_ptx::{Module, Point, Site};

/// Elements that a kernel's threads keep at most: each takes three registers or more, and code at each exit.
const MOST_SUMS: usize = 4;
/// Exits of a kernel whose threads keep anything.
const MOST_EXITS: usize = 16;

/// What a kernel's threads keep.
pub(crate) struct Kept {
    parts: Vec<SwitchSums>,
}

/// What handlers with the same switch have them keep.
struct SwitchSums {
    switch: usize,
    /// The first of them, to which it is put down if an element can't be made.
    handler: usize,
    sums: Sums,
}

/// What one could keep.
struct Candidate {
    switch: usize,
    handler: usize,
    sum: Sum,
    /// The places in the code that add to it.
    n_places: usize,
    /// Whether handlers do different things to it.
    is_mixed: bool,
}

impl Kept {
    /// Chooses the elements that most places add to.
    fn chosen(mut candidates: Vec<Candidate>) -> Self {
        candidates.retain(|it| !it.is_mixed);
        candidates.sort_by_key(|it| std::cmp::Reverse(it.n_places));
        candidates.truncate(MOST_SUMS);
        let mut by_switch: BTreeMap<usize, (usize, Vec<Sum>)> = BTreeMap::new();
        for it in candidates {
            let (handler, sums) = by_switch.entry(it.switch).or_insert((it.handler, Vec::new()));
            *handler = it.handler.min(*handler);
            sums.push(it.sum);
        }
        let mut first = 0;
        let part = |(switch, (handler, list)): (usize, (usize, Vec<Sum>))| {
            let sums = Sums::numbered(first, list);
            first += sums.len();
            SwitchSums { switch, handler, sums }
        };
        Kept { parts: by_switch.into_iter().map(part).collect() }
    }

    /// Returns what is at the beginning of the kernel.
    pub(crate) fn registers(&self) -> String {
        self.parts.iter().map(|it| it.sums.registers()).collect()
    }

    /// Returns what handlers with this switch have threads keep.
    pub(crate) fn sums(&self, switch: usize) -> Sums {
        self.parts.iter().find(|it| it.switch == switch).map(|it| it.sums.clone()).unwrap_or_default()
    }
}

impl Maker {
    /// Chooses what the threads of each kernel keep, where they keep anything.
    pub(crate) fn kept(
        &self,
        module: &Module,
        kernels: &Kernels<'_>,
        architecture: u32,
    ) -> Result<BTreeMap<String, Kept>, Failure> {
        let names = kernels.names();
        let wants_any =
            names.iter().any(|it| kernels.wanted(it).handlers.iter().any(|at| keeps(self.handlers[*at].place)));
        if self.origin != Origin::Script || !wants_any {
            return Ok(BTreeMap::new());
        }
        let mut found: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
        let mut n_exits: BTreeMap<String, usize> = BTreeMap::new();
        let (mut ends_elsewhere, mut refused) = (false, Refused::new());
        module.clone().weave(&names, &mut |site| {
            let is_kernel = kernels.has(site.function);
            ends_elsewhere |= site.point == Point::Exit && !is_kernel;
            if is_kernel && site.point == Point::Exit {
                *n_exits.entry(site.function.to_owned()).or_default() += 1;
            }
            let place = places_of(site).iter().copied().find(|it| is_kernel && keeps(*it))?;
            let found = found.entry(site.function.to_owned()).or_default();
            for handler in self.of_place(kernels.wanted(site.function), place) {
                if let Err(refusal) = self.add_candidates(found, handler, kernels, site, architecture) {
                    refused.entry(site.function.to_owned()).or_insert(NoTwin::Refused(refusal));
                }
            }
            None
        })?;
        let is_fit = |kernel: &str| !ends_elsewhere && n_exits.get(kernel).is_some_and(|it| *it <= MOST_EXITS);
        let found = found.into_iter().filter(|(kernel, all)| !all.is_empty() && is_fit(kernel));
        if !refused.is_empty() {
            return Err(Failure::Of(refused));
        }
        Ok(found.map(|(kernel, all)| (kernel, Kept::chosen(all))).collect())
    }

    /// Adds what a handler at a place of a kernel could have its threads keep.
    fn add_candidates(
        &self,
        found: &mut Vec<Candidate>,
        handler: usize,
        kernels: &Kernels<'_>,
        site: &Site<'_>,
        architecture: u32,
    ) -> Result<(), Refusal> {
        let switch = switch_of(&self.handlers[handler]);
        let context = self.origin.context(&kernels.spot(site.function, site), &self.texts);
        let options = self.options(handler, architecture, TableAt::Variable { switch });
        let program = &self.handlers[handler].program;
        let sums = Sums::of(Request { program, maps: self.maps(), context: &context, options: &options })?;
        for sum in sums.into_iter().filter(|it| self.added_to.contains(&it.map())) {
            match found.iter_mut().find(|it| it.switch == switch && it.sum.is_of(&sum)) {
                Some(known) => {
                    known.is_mixed |= !known.sum.merge(&sum);
                    known.n_places += 1;
                }
                None => found.push(Candidate { switch, handler, sum, n_places: 1, is_mixed: false }),
            }
        }
        Ok(())
    }

    /// Returns what adds that which a thread has kept to the maps.
    pub(crate) fn flush(&self, kept: &Kept, spot: &Spot<'_>, architecture: u32) -> Result<String, Refusal> {
        let context = self.origin.context(spot, &self.texts);
        let mut text = String::new();
        for SwitchSums { switch, handler, sums } in &kept.parts {
            let mut options = self.options(*handler, architecture, TableAt::Variable { switch: *switch });
            options.first_site += options.sites.len() as u32;
            text += &sums.flush(self.maps(), &context, &Options { sites: Vec::new(), ..options })?;
        }
        Ok(together_again(&text))
    }
}
