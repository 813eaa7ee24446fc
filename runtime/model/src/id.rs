//! Ids: positions in lists of the plan, a type per list, so that one is never taken for another.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the id of the item at `index`.
            pub fn at(index: usize) -> Self {
                $name(index as u32)
            }

            /// Returns the position in the list.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// Pairs each item of the list with its id.
            pub fn each<T>(items: impl IntoIterator<Item = T>) -> impl Iterator<Item = (Self, T)> {
                (0..).map($name).zip(items)
            }
        }
    )*};
}

ids! {
    /// A map of the script: its position in [`Plan::tables`](crate::plan::Plan::tables).
    TableId;
    /// A handler: its position in [`Plan::probes`](crate::plan::Plan::probes).
    ProbeId;
    /// An interpreted handler: its position among the interpreter's closures.
    ClosureId;
}
