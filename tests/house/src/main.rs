//! Prints all measures of the shipped code, and what is still to go.

use std::io::Write;
use std::path::Path;
use xputrace_house::measure;
use xputrace_house::sources::Sources;

fn main() -> anyhow::Result<()> {
    let house = measure(&Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?)?;
    std::io::stdout().write_all(house.to_string().as_bytes())?;
    Ok(())
}
