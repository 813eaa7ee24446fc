//! The words in names, and those of them that belong to one vendor.

use crate::modules::File;
use crate::shipped;
use quote::ToTokens;
use std::collections::BTreeMap;

/// The vendor's own folders: all in them is for its GPUs.
pub const VENDOR_FOLDERS: [&str; 10] = [
    "gpu-probes/cubins",
    "gpu-probes/cuda-calls",
    "gpu-probes/device",
    "gpu-probes/layouts",
    "gpu-probes/nvidia",
    "gpu-probes/ptx",
    "gpu-probes/softgpu",
    "gpu-probes/twins",
    "gpu-probes/wire/src/nvidia",
    "runtime/nvidia",
];

/// The vendor's words. Those that begin with one are its words too (`ptxas`, `cudart`), and those with `lib` before it.
const VENDOR_WORDS: [&str; 4] = ["cuda", "cupti", "nvtx", "ptx"];

/// A file outside of the vendor's folders with names of the vendor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorFile {
    pub path: String,
    /// How often it has each name.
    pub names: BTreeMap<String, usize>,
    /// The line of the first.
    pub at: usize,
}

/// Returns what a file has of the vendor's names.
pub fn vendor_file(file: &File) -> Option<VendorFile> {
    if VENDOR_FOLDERS.iter().any(|folder| file.path.strip_prefix(folder).is_some_and(|it| it.starts_with('/'))) {
        return None;
    }
    let mut found = VendorFile { path: file.path.clone(), names: BTreeMap::new(), at: 0 };
    shipped::each_token(file.syntax.to_token_stream(), &mut |ident, span| {
        let Some(name) = ident.map(ToString::to_string).filter(|name| is_vendors(name)) else { return };
        if found.names.is_empty() {
            found.at = span.start().line;
        }
        *found.names.entry(name).or_default() += 1;
    });
    (!found.names.is_empty()).then_some(found)
}

/// Whether a name has one of the vendor's words.
pub fn is_vendors(name: &str) -> bool {
    words(name).iter().any(|word| {
        let word = word.strip_prefix("lib").unwrap_or(word);
        VENDOR_WORDS.iter().any(|vendors| word.starts_with(vendors))
    })
}

/// Splits a name into its words, in lower case: at underscores, and where capitals begin or end (`PTXText` is `ptx`, `text`).
pub fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (index, char) in chars.iter().enumerate() {
        let after_small = index > 0 && !chars[index - 1].is_uppercase();
        let before_small = chars.get(index + 1).is_some_and(|next| next.is_lowercase());
        if *char == '_' || (char.is_uppercase() && (after_small || before_small)) {
            words.push(String::new());
        }
        if *char != '_' {
            words.last_mut().expect("at least one").extend(char.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
