//! `xputrace doctor`: what works on this machine, and how to fix what does not.

use crate::cli::DoctorOptions;
use crate::console;
use anyhow::Result;
use serde_json::json;
use std::process::ExitCode;
use xputrace_linux::{Fact, Standing};
use xputrace_nvidia_tracer::facts;

/// Prints one line per fact; status 0 if GPU scripts or CPU scripts can run.
pub fn doctor(options: &DoctorOptions) -> Result<ExitCode> {
    let mut facts = xputrace_linux::facts();
    facts.extend(facts::facts());
    let is_json = options.is_json();
    let mut text: String = facts.iter().map(|it| if is_json { as_json(it) } else { as_text(it) }).collect();
    let side = |gpu: bool| {
        let mut side = facts.iter().filter(|it| facts::NAMES.contains(&it.name) == gpu);
        side.all(|it| it.standing != Standing::Missing)
    };
    let (cpu, gpu) = (side(false), side(true));
    if !is_json {
        text += &format!("\nCPU probes: {}\nGPU probes: {}\n", verdict(cpu), verdict(gpu));
    }
    console::print(text)?;
    Ok(if cpu || gpu { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn verdict(works: bool) -> &'static str {
    if works { "can run here" } else { "cannot run here; see the lines marked missing" }
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Works => "works",
        Standing::Limited => "limited",
        Standing::Missing => "missing",
    }
}

fn as_text(fact: &Fact) -> String {
    let mut text = format!("{:<8} {:<22} {}\n", word(fact.standing), fact.name, fact.found);
    if let Some(fix) = &fact.fix {
        text.push_str(&format!("{:31} fix: {fix}\n", ""));
    }
    text
}

fn as_json(fact: &Fact) -> String {
    let data = json!({"name": fact.name, "standing": word(fact.standing), "found": fact.found, "fix": fact.fix});
    format!("{}\n", json!({"type": "fact", "data": data}))
}
