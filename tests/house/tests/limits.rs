//! Holds the shipped code against `limits.txt`.

use std::fs;
use std::path::Path;
use xputrace_house::limits::Limits;
use xputrace_house::measure;
use xputrace_house::ratchet::compare;
use xputrace_house::sources::Sources;

#[test]
fn the_shipped_code_is_within_its_limits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let house = measure(&Sources::read(&folder.join("../..")).unwrap()).unwrap();
    let file = folder.join("limits.txt");
    let limits = Limits::parse(&fs::read_to_string(&file).unwrap_or_default()).unwrap();
    let differences = compare(&house, &limits);
    if xputrace_golden::blesses() {
        println!("{differences}");
        fs::write(&file, Limits::of(&house, &limits).to_string()).unwrap();
    } else {
        assert!(differences.is_empty(), "\n{differences}");
    }
}
