//! The kernels of a twin, with the functions that they call.

use crate::handler::Wanted;
use crate::spot::{Parameter, Spot, parameters};
use std::collections::BTreeMap;
use xputrace_ptx::{Module, Site};

/// The kernels of a twin.
pub(crate) struct Kernels<'a> {
    wanted: &'a BTreeMap<String, Wanted>,
    parameters: BTreeMap<&'a str, Vec<Parameter>>,
    shared: Shared,
    /// The functions whose names handlers may read at calls.
    pub(crate) callees: Vec<String>,
}

impl<'a> Kernels<'a> {
    pub(crate) fn of(module: &Module, wanted: &'a BTreeMap<String, Wanted>, shared: Shared) -> Self {
        let parameters = |it: &'a String| (it.as_str(), module.kernel(it).map(parameters).unwrap_or_default());
        Kernels { wanted, parameters: wanted.keys().map(parameters).collect(), shared, callees: Vec::new() }
    }

    pub(crate) fn names(&self) -> Vec<&'a str> {
        self.wanted.keys().map(String::as_str).collect()
    }

    pub(crate) fn wanted(&self, kernel: &str) -> &'a Wanted {
        &self.wanted[kernel]
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        self.wanted.contains_key(function)
    }

    /// Returns the kernel whose handlers a place gets, if any runs it.
    pub(crate) fn caller<'s>(&'s self, site: &Site<'s>) -> Option<&'s str> {
        if self.has(site.function) {
            return Some(site.function);
        }
        self.shared.get(site.function).map(|it| it.kernel.as_str())
    }

    /// Returns the function that a place calls, as the original calls it.
    pub(crate) fn callee<'s>(&'s self, site: &Site<'s>) -> Option<&'s str> {
        let callee = site.instruction?.callee()?;
        Some(self.shared.get(callee).map_or(callee, |it| it.original.as_str()))
    }

    /// Returns the symbols of the twin's variable for names, in their order.
    pub(crate) fn symbols(&self) -> Vec<String> {
        self.wanted.keys().chain(&self.callees).cloned().collect()
    }

    /// Returns a place in a kernel, which knows its parameters there.
    pub(crate) fn spot<'s>(&'s self, kernel: &str, site: &'s Site<'s>) -> Spot<'s> {
        let parameters = self.parameters.get(kernel).filter(|_| kernel == site.function);
        let kernel = self.wanted.keys().position(|it| it == kernel).unwrap_or(0);
        let callee =
            self.callee(site).and_then(|it| self.callees.binary_search_by(|known| known.as_str().cmp(it)).ok());
        let callee = callee.map(|it| self.wanted.len() + it);
        Spot { kernel, callee, site: Some(site), parameters: parameters.map_or(&[], Vec::as_slice) }
    }
}

/// The functions of a twin, copies included, by their names in it.
pub(crate) type Shared = BTreeMap<String, SharedFunction>;

/// A function of a twin that is no kernel.
pub(crate) struct SharedFunction {
    /// The kernel that calls it; where several do, they have the same handlers in it.
    pub(crate) kernel: String,
    /// What it is called in the original.
    pub(crate) original: String,
}
