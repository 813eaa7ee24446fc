//! What is parsed is printed as it was, but for comments and layout.

mod common;

use common::{corpus, fixtures, normalised};
use std::fs;
use xputrace_ptx::Module;

#[test]
fn fixtures_are_printed_as_they_were() {
    for (name, text) in fixtures() {
        check(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn a_corpus_is_printed_as_it_was() {
    let Some(files) = corpus() else { return };
    let wrong: Vec<String> = files
        .iter()
        .filter_map(|path| {
            let text = fs::read(path).unwrap();
            check(&String::from_utf8_lossy(&text)).err().map(|why| format!("{}: {why}", path.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), files.len(), wrong.join("\n"));
}

fn check(text: &str) -> Result<(), String> {
    let module = Module::parse(text).map_err(|error| error.to_string())?;
    let printed = module.to_string();
    let (before, after) = (normalised(text), normalised(&printed));
    if let Some(at) = before.iter().zip(&after).position(|(before, after)| before != after) {
        let around = at.saturating_sub(10)..(at + 10).min(before.len()).min(after.len());
        return Err(format!("was {:?}, is {:?}", &before[around.clone()], &after[around]));
    }
    if before.len() != after.len() {
        return Err(format!("had {} words and signs, has {}", before.len(), after.len()));
    }
    let again = Module::parse(&printed).map_err(|error| format!("printed: {error}"))?;
    if again == module { Ok(()) } else { Err("what was printed is another module".to_owned()) }
}
