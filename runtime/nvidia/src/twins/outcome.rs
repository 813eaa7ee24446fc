//! Says what became of a process's images and launches, where handlers could not run.

use super::unpatchable;
use xputrace_model::plan::{DeviceWay, Plan};
use xputrace_rendezvous::DeviceCounts;
use xputrace_wire::device::{ImageOutcome, Unprobed};

/// Returns what the user should know of a process whose device code has ended.
pub fn notes(plan: &Plan, way: DeviceWay, counts: &DeviceCounts) -> Vec<String> {
    let DeviceCounts { swapped, failures, unprobed, images, programs, .. } = counts;
    let missed = ImageOutcome::ALL.iter().zip(images).filter(|it| *it.1 > 0);
    let mut notes: Vec<String> =
        missed.filter_map(|(outcome, n)| Some(format!("{n} of its images {}", missed_by(*outcome)?))).collect();
    notes.extend(failures.iter().map(|code| failure(*code)));
    // What follows says it of kernels that were loaded before, and the above of other images.
    let has_handlers = plan.device_handlers().next().is_some();
    let has_reasons = unprobed.iter().any(|it| *it > 0) || !has_handlers || has_others(images);
    if *swapped <= programs.launched && !has_reasons {
        notes.push(none_probed(way, images[ImageOutcome::NoPortableCode as usize], &patches_hint(plan)));
    }
    let unprobed = Unprobed::ALL.iter().zip(unprobed).filter(|it| *it.1 > 0);
    notes.extend(unprobed.map(|(why, n)| format!("{n} launches ran without handlers: {}", ran_original(*why))));
    notes
}

/// Says that the driver answered with an error, and whose it is.
fn failure(code: u32) -> String {
    match kernel_failure(code) {
        Some(what) => format!(
            "a kernel of the program failed: {what} (CUDA's error {code}). Handlers only access memory of their own, within \
             bounds that are tested; without them it should fail as well"
        ),
        None => format!("what handlers did could not be read: CUDA's error {code}"),
    }
}

/// Says what to do for kernels without PTX, if anything can be done.
fn patches_hint(plan: &Plan) -> String {
    match unpatchable(plan) {
        Some(why) => format!(". Others are not patched: {why}"),
        None if plan.object.is_some() => ". --via patch reaches others".into(),
        None => ". For other kernels, let the handlers have #{via: \"patch\"}".into(),
    }
}

/// Whether there are images with kernels that device handlers name: with a twin, or without one for a reason that is said.
fn has_others(images: &[u64]) -> bool {
    let others = |it: &ImageOutcome| !matches!(it, ImageOutcome::NothingToProbe | ImageOutcome::NoPortableCode);
    ImageOutcome::ALL.iter().zip(images).any(|(outcome, n)| others(outcome) && *n > 0)
}

/// Says that no kernel of a process has handlers; `n_without_ptx` of its images have no PTX.
fn none_probed(way: DeviceWay, n_without_ptx: u64, hint: &str) -> String {
    match way {
        DeviceWay::Twin => format!(
            "none of its images has PTX of a kernel that a device handler names ({n_without_ptx} have no PTX at all): a twin \
             needs it, and kernels have it that nvcc compiles with -arch=sm_90, and Triton's whose cache has it{hint}"
        ),
        DeviceWay::Patch => {
            "none of the modules that it has loaded since then has a kernel that a device handler names: \
             modules that were loaded before can't be patched"
                .to_owned()
        }
    }
}

/// Says why images have no twin; `None` where none was missed, or where that is said of all of them together.
fn missed_by(outcome: ImageOutcome) -> Option<&'static str> {
    Some(match outcome {
        ImageOutcome::Twinned | ImageOutcome::NothingToProbe | ImageOutcome::NoPortableCode => return None,
        // Of a kernel alone, which is said of its launches.
        ImageOutcome::NotInFiles | ImageOutcome::Ambiguous | ImageOutcome::Unlike => return None,
        ImageOutcome::TooLarge => "had more PTX than is read",
        ImageOutcome::Unreadable => "could not be read",
        ImageOutcome::NotWoven => "could not be given handlers",
        ImageOutcome::NoAnswer => "timed out waiting for a twin",
        ImageOutcome::NotLoaded => "have a twin that the driver did not load",
        ImageOutcome::File => "were loaded from files that could not be read",
        ImageOutcome::OlderPortableCode => {
            "have PTX, but not that of their code for this GPU, which may do other things"
        }
        ImageOutcome::TableFull => "are more, or have more kernels, than can be replaced",
    })
}

/// Says what a kernel did after which its context can't be used; `None` for other errors (`CUresult` in CUDA's `cuda.h`).
fn kernel_failure(code: u32) -> Option<&'static str> {
    Some(match code {
        700 => "it accessed an illegal address",
        702 => "it took longer than the GPU's driver allows",
        710 => "an assertion did not hold",
        714 => "its call stack was corrupted or too deep",
        715 => "it executed an illegal instruction",
        716 => "it accessed an address that isn't aligned",
        717 => "it accessed an address of the wrong memory space",
        718 => "it jumped to an address that isn't code",
        719 => "it came to a trap, or failed for another reason",
        _ => return None,
    })
}

/// Says why launches ran the original.
fn ran_original(why: Unprobed) -> &'static str {
    match why {
        Unprobed::NotReady => "before their twin was ready",
        Unprobed::Cooperative => "cooperatively, with a grid that their twin may not fit the GPU with",
        Unprobed::NoContext => "in contexts beyond the first 16, or in green ones",
        Unprobed::AttributeRefused => "with an attribute that their twin did not take",
        Unprobed::BlockTooLarge => "with more threads a block than their twin has registers for",
        Unprobed::InGraph => "in graphs, where handlers of patches with `every` or `tag` do not run",
        Unprobed::MayNotFit => "with a grid that must be fully resident; their twin may not fit",
        Unprobed::NotInFiles => {
            "their kernels were loaded before xputrace attached, and no file that the process has mapped has them: they were \
             compiled while it ran, as Triton's are. Start the program under xputrace"
        }
        Unprobed::NoPortableCode => {
            "their kernels were loaded before xputrace attached, and their file has no PTX of them: start the program under \
             xputrace, and let the handlers have #{via: \"patch\"}"
        }
        Unprobed::OlderPortableCode => {
            "their kernels were loaded before xputrace attached, and the PTX in their file is not that of their code, which may \
             do other things"
        }
        Unprobed::Ambiguous => {
            "their kernels were loaded before xputrace attached, and files of the process have different kernels of their name: \
             start the program under xputrace"
        }
        Unprobed::Unlike => {
            "their kernels were loaded before xputrace attached, and take other parameters than those of their name in the \
             process's files: start the program under xputrace"
        }
        Unprobed::NoTwin => {
            "their kernels were loaded before xputrace attached, and their twin could not be made or loaded"
        }
        Unprobed::NotKnown => {
            "their kernels were loaded before xputrace attached, and the process's files were still searched for them"
        }
        Unprobed::TooManyKernels => "their kernels are more than xputrace can look for in the process's files",
    }
}
