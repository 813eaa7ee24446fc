//! Ids: positions in lists, a type per list, so that one is never taken for another.

/// Declares types of ids.
#[macro_export]
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
    /// A map of an image: its position in [`Image::maps`](crate::Image::maps).
    BpfMapId;
    /// A program of an image: its position in [`Image::programs`](crate::Image::programs).
    ProgramId;
}
