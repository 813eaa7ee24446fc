//! Names of CUPTI 13.0's callbacks and results, read from the committed dump.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// The dump of a real CUPTI; see `gpu-probes/layouts/dump.cu`.
pub(crate) const LAYOUTS: &str = include_str!("../../layouts/cupti-13.0/layouts.txt");

/// Returns CUPTI's name of a callback id, or `None` for an unknown id.
pub(crate) fn callback(domain: u32, id: u32) -> Option<&'static CStr> {
    tables().callbacks.get(&(domain, id)).map(CString::as_c_str)
}

/// Returns CUPTI's name of a result code.
pub(crate) fn result(code: u32) -> Option<&'static CStr> {
    tables().results.get(&code).map(CString::as_c_str)
}

struct NameTables {
    callbacks: HashMap<(u32, u32), CString>,
    results: HashMap<u32, CString>,
}

fn tables() -> &'static NameTables {
    static TABLES: OnceLock<NameTables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = NameTables { callbacks: HashMap::new(), results: HashMap::new() };
        for line in LAYOUTS.lines() {
            tables.read(line);
        }
        tables
    })
}

impl NameTables {
    fn read(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["cbid", domain, id, name] => {
                let domain = if *domain == "driver" { 1 } else { 2 };
                self.callbacks.insert((domain, id.parse().ok()?), CString::new(*name).ok()?);
            }
            ["result", code, name] => {
                self.results.insert(code.parse().ok()?, CString::new(*name).ok()?);
            }
            _ => {}
        }
        Some(())
    }
}
