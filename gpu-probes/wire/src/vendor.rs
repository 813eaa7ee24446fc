//! Whose GPUs a collector records.

/// A vendor, by the number that HELLO says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Vendor {
    #[default]
    Nvidia = 0,
}

impl Vendor {
    const ALL: [Vendor; 1] = [Vendor::Nvidia];

    /// Returns the vendor with this number; `None` if there is none.
    pub fn numbered(number: u64) -> Option<Vendor> {
        Vendor::ALL.into_iter().find(|it| *it as u64 == number)
    }

    /// Returns the name of the library that tells of activities, for messages.
    pub fn library(self) -> &'static str {
        match self {
            Vendor::Nvidia => "CUPTI",
        }
    }
}
