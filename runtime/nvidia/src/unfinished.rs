//! What goes on behind the end of a run, for the next one: searches and compilers, on threads that end with xputrace.

use crate::choosing::Chooser;
use crate::twins::Twins;
use std::sync::Arc;
use xputrace_render::counted;

/// What a run leaves that takes longer than programs wait for it, and keeps on disk what the next run needs.
pub struct Unfinished {
    pub twins: Option<Twins>,
    pub chooser: Option<Arc<Chooser>>,
}

impl Unfinished {
    /// Whether anything goes on.
    pub fn goes_on(&self) -> bool {
        self.n_compiling() + self.n_searching() > 0
    }

    /// Says what the next run knows of the files that there was no time to search, if there were any.
    pub fn outcome(&self) -> Option<&'static str> {
        self.chooser.as_ref()?.outcome()
    }

    fn n_compiling(&self) -> usize {
        self.twins.as_ref().map_or(0, Twins::n_compiling)
    }

    fn n_searching(&self) -> usize {
        self.chooser.as_ref().map_or(0, |it| it.n_searching())
    }

    /// Says what goes on; empty if nothing does.
    pub fn text(&self) -> String {
        let of = |n: usize, text: &dyn Fn(u64) -> String| (n > 0).then(|| text(n as u64));
        let compiles = of(self.n_compiling(), &|n| {
            format!("ptxas still compiles {} of kernels, which the next run will find", counted(n, "twin", "twins"))
        });
        let searches = of(self.n_searching(), &|n| {
            format!("the files of {} are still searched for kernels", counted(n, "process", "processes"))
        });
        compiles.into_iter().chain(searches).collect::<Vec<_>>().join(", and ")
    }
}
