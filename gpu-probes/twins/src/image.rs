//! The twins of an image: which kernels get one, which of them together, and why others get none.

use crate::NoTwin;
use crate::handler::Wanted;
use crate::maker::Maker;
use crate::refusal::{Failure, Refused};
use crate::target::CompileTarget;
use crate::text::{Gpu, best, text};
use crate::twin_text::TwinText;
use std::collections::BTreeMap;
use xputrace_events::DeviceEvent;
use xputrace_ptx::Module;
use xputrace_wire::device::{Choice, MOST_KERNEL_CONDITIONS, PortableCode};

/// The twins of an image.
#[derive(Debug, Default)]
pub struct ImageTwins {
    pub texts: Vec<TwinText>,
    /// The other kernels that should get handlers.
    pub refused: Refused,
}

/// What kernels get, at which launches.
type Choices = BTreeMap<String, Vec<(Choice, Wanted)>>;

impl Maker {
    /// Makes the twins of an image: one for each choice that the conditions of a kernel's handlers leave, and those of a
    /// kernel that may run itself again are apart. `wanted` says what a kernel of this symbol gets, if anything.
    ///
    /// # Errors
    /// A kernel should get a handler, but none of the image can.
    pub fn twins(
        &self,
        image: &[PortableCode<'_>],
        gpu: Gpu,
        wanted: &mut dyn FnMut(&str) -> Option<Wanted>,
    ) -> Result<ImageTwins, NoTwin> {
        let Some(ptx) = best(image, gpu) else { return Ok(ImageTwins::default()) };
        let module = Module::parse(&text(ptx)?)?;
        let kernels = chosen(&module, wanted);
        let target = CompileTarget::of(&module);
        if !kernels.is_empty() && !target.is_enough() {
            return Err(NoTwin::TooOld { target: target.text });
        }
        let (mut twins, mut choices) = (ImageTwins::default(), Choices::new());
        for (kernel, wanted) in kernels {
            match self.choices_in(&module, &kernel, &wanted) {
                Ok(all) => _ = choices.insert(kernel, all),
                Err(why) => _ = twins.refused.insert(kernel, why),
            }
        }
        let calls = module.calls();
        let (alone, together): (Choices, Choices) =
            choices.into_iter().partition(|(kernel, _)| calls.leads_to_recursion(kernel));
        for group in alone.into_iter().map(|it| Choices::from([it])).chain([together]) {
            self.add_twins(&mut twins, &module, gpu, group);
        }
        Ok(twins)
    }

    /// Returns what a kernel gets at which launches.
    ///
    /// # Errors
    /// It can't get it.
    fn choices_in(&self, module: &Module, kernel: &str, wanted: &Wanted) -> Result<Vec<(Choice, Wanted)>, NoTwin> {
        let obstacles = module.faithful(kernel);
        if !obstacles.is_empty() {
            let obstacles = obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            return Err(NoTwin::Obstacles(obstacles));
        }
        if !module.has_lines() && self.of_place(wanted, DeviceEvent::Line).next().is_some() {
            return Err(NoTwin::NoLines);
        }
        self.choices(wanted)
    }

    /// Returns what a kernel gets at which launches, where that is anything.
    ///
    /// # Errors
    /// They are too many.
    pub fn choices(&self, wanted: &Wanted) -> Result<Vec<(Choice, Wanted)>, NoTwin> {
        let mut all: Vec<u8> = wanted.handlers.iter().filter_map(|it| self.condition(*it)).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() > MOST_KERNEL_CONDITIONS {
            return Err(NoTwin::Conditions { n: all.len() });
        }
        let conditions = std::array::from_fn(|at| all.get(at).copied());
        let choice = |holding: u8| {
            let holds = |it: &&usize| {
                let at = self.condition(**it).map(|it| all.iter().position(|known| *known == it).unwrap_or(0));
                at.is_none_or(|at| holding >> at & 1 == 1)
            };
            let handlers: Vec<usize> = wanted.handlers.iter().filter(holds).copied().collect();
            (!handlers.is_empty()).then_some((Choice { conditions, holding }, Wanted { handlers }))
        };
        Ok((0..1 << all.len()).filter_map(choice).collect())
    }

    /// Adds the twins of kernels that are in modules together; kernels that can't be are refused, and the others get theirs.
    fn add_twins(&self, twins: &mut ImageTwins, module: &Module, gpu: Gpu, mut kernels: Choices) {
        while let Some(first) = kernels.keys().next().cloned() {
            let refused = match self.all_choices(module, gpu, &kernels) {
                Ok(texts) => return twins.texts.extend(texts),
                Err(Failure::Of(refused)) => refused,
                Err(Failure::OfOne(why)) => {
                    let alone = kernels.iter().filter_map(|it| self.refusal_alone(module, gpu, it));
                    let refused: Refused = alone.collect();
                    // If each has one alone, the first stands for them.
                    if refused.is_empty() { Refused::from([(first, why)]) } else { refused }
                }
            };
            kernels.retain(|it, _| !refused.contains_key(it));
            twins.refused.extend(refused);
        }
    }

    /// Returns a kernel that has no twin in a module of its own, with the reason.
    fn refusal_alone(
        &self,
        module: &Module,
        gpu: Gpu,
        (kernel, choices): (&String, &Vec<(Choice, Wanted)>),
    ) -> Option<(String, NoTwin)> {
        let alone = Choices::from([(kernel.clone(), choices.clone())]);
        let why = match self.all_choices(module, gpu, &alone).err()? {
            Failure::Of(refused) => refused.into_values().next()?,
            Failure::OfOne(why) => why,
        };
        Some((kernel.clone(), why))
    }

    fn all_choices(&self, module: &Module, gpu: Gpu, all: &Choices) -> Result<Vec<TwinText>, Failure> {
        let at = |holding: u8| {
            let of_kernel = |(kernel, all): (&String, &Vec<(Choice, Wanted)>)| {
                let found = all.iter().find(|it| it.0.holding == holding)?;
                Some((kernel.clone(), found.clone()))
            };
            let kernels: BTreeMap<String, (Choice, Wanted)> = all.iter().filter_map(of_kernel).collect();
            (!kernels.is_empty()).then_some(kernels)
        };
        let all = (0..1 << MOST_KERNEL_CONDITIONS).filter_map(at);
        all.map(|kernels| self.twin(module.clone(), gpu, kernels)).collect()
    }
}

/// Returns the kernels of a module that get anything.
fn chosen(module: &Module, wanted: &mut dyn FnMut(&str) -> Option<Wanted>) -> BTreeMap<String, Wanted> {
    let kernels = module.functions().filter(|it| it.is_kernel() && it.body.is_some());
    kernels.filter_map(|it| Some((it.name.clone(), wanted(&it.name)?))).collect()
}
