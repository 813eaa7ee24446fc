//! Ids of its own that the program, or a tool in it, has pushed for the calls that a thread makes next, such as the number of a
//! PyTorch operator. A launch has the innermost one.

use std::cell::RefCell;

/// Depth of nesting down to which ids are known.
const MOST_DEPTH: usize = 64;

/// An id, and who it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct External {
    /// An `xputrace_wire::events::ExternalKind`.
    pub kind: u32,
    pub id: u64,
}

/// The ids that a thread has pushed and not popped, innermost last. Those of a kind are a stack of their own.
#[derive(Debug)]
struct Pushed {
    ids: [External; MOST_DEPTH],
    n: usize,
    /// Ids inside these, of which nothing is known.
    n_deeper: usize,
}

impl Pushed {
    const NONE: Pushed = Pushed { ids: [External { kind: 0, id: 0 }; MOST_DEPTH], n: 0, n_deeper: 0 };

    fn push(&mut self, it: External) {
        if self.n < MOST_DEPTH && self.n_deeper == 0 {
            self.ids[self.n] = it;
            self.n += 1;
        } else {
            self.n_deeper += 1;
        }
    }

    /// Removes the innermost of a kind.
    fn pop(&mut self, kind: u32) {
        if self.n_deeper != 0 {
            self.n_deeper -= 1;
        } else if let Some(at) = self.ids[..self.n].iter().rposition(|it| it.kind == kind) {
            self.ids.copy_within(at + 1..self.n, at);
            self.n -= 1;
        }
    }

    fn innermost(&self) -> Option<External> {
        if self.n_deeper == 0 { self.ids[..self.n].last().copied() } else { None }
    }
}

thread_local! {
    /// Has no destructor, so that it is always usable.
    static THREAD: RefCell<Pushed> = const { RefCell::new(Pushed::NONE) };
}

/// The calling thread has pushed an id.
pub fn push(kind: u32, id: u64) {
    THREAD.with(|it| it.try_borrow_mut().map_or((), |mut it| it.push(External { kind, id })));
}

/// The calling thread has popped its innermost id of a kind.
pub fn pop(kind: u32) {
    THREAD.with(|it| it.try_borrow_mut().map_or((), |mut it| it.pop(kind)));
}

/// Returns the calling thread's innermost id; `None` without one, or where they are nested too deep.
pub(crate) fn innermost() -> Option<External> {
    THREAD.with(|it| it.try_borrow().ok()?.innermost())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn external(kind: u32, id: u64) -> External {
        External { kind, id }
    }

    #[test]
    fn each_kind_is_a_stack_and_the_last_push_is_innermost() {
        let mut it = Pushed::NONE;
        [(3, 1), (4, 2), (3, 3)].into_iter().for_each(|(kind, id)| it.push(external(kind, id)));
        assert_eq!(it.innermost(), Some(external(3, 3)));
        it.pop(4);
        assert_eq!(it.innermost(), Some(external(3, 3)));
        it.pop(3);
        it.pop(5);
        assert_eq!(it.innermost(), Some(external(3, 1)));
        it.pop(3);
        it.pop(3);
        assert_eq!(it.innermost(), None);
    }

    proptest! {
        /// As long as ids are popped as they were pushed, any depth ends as it began.
        #[test]
        fn ids_nested_too_deep_are_unknown_until_they_are_popped(kinds in proptest::collection::vec(1_u32..6, 0..200)) {
            let mut it = Pushed::NONE;
            for (n, kind) in kinds.iter().enumerate() {
                it.push(external(*kind, n as u64));
                let known = (n < MOST_DEPTH).then(|| external(*kind, n as u64));
                prop_assert_eq!(it.innermost(), known);
            }
            kinds.iter().rev().for_each(|kind| it.pop(*kind));
            prop_assert_eq!((it.innermost(), it.n, it.n_deeper), (None, 0, 0));
        }
    }
}
