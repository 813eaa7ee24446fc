//! Values of fields that scripts see as strings.

/// Defines a list of strings by number.
macro_rules! texts {
    ($(#[$doc:meta])* $Kind:ident { $($(#[$note:meta])* $Variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $Kind { $( $(#[$note])* $Variant = $number, )* }

        impl $Kind {
            /// Names in scripts, by number.
            pub const NAMES: &'static [&'static str] = &["", $( $text ),*];
        }
    };
}
