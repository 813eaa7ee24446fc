//! What the program's threads and the agent's own ask of each other and of the tracer for handlers inside kernels.

use super::exchange::{Asked, ImageAnswer, LOOKS_EVERY};
use super::files::{LoadedFile, places_of_portable_code};
use super::memory::{CodeAt, ImageCode, ImageFile, ProgramMemory};
use super::region::{self, DeviceRegion};
use super::waits::{LAST_COPY_WITHIN, TWIN_WITHIN};
use super::worker::Job;
use crate::agent::Agent;
use crate::backend::KernelCode;
use crate::state::this_thread::untraced;
use crate::threads::{spawn, spawn_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xputrace_wire::device::{
    ComputeCapabilities, CopyExtent, DeviceCode, ImageOutcome, MOST_IMAGE_BYTES, Patches, Programs, ProgramsState,
    Twin, Unprobed, image_kind, twin_status,
};
use xputrace_wire::message::{IMAGE, Message, demand};

/// How often it is looked what has become of programs, where somebody waits for them.
const LOOKS_AT_PROGRAMS_EVERY: Duration = Duration::from_millis(20);
/// How often the courier tries to send where the tracer does not read.
const SENDS_EVERY: Duration = Duration::from_millis(1);
/// The driver compiles PTX on the worker.
const WORKERS_STACK_BYTES: usize = 8 << 20;

impl Agent {
    /// Returns the memory with the blocks; `None` in a run without twins.
    pub fn device_region(&self) -> Option<&DeviceRegion> {
        self.memory.device.as_ref()
    }

    /// Counts launches that ran the original though handlers name it.
    pub fn count_unprobed(&self, why: Unprobed, n: u64) {
        if let Some(region) = self.device_region() {
            region.control().unprobed[why as usize].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Takes back so much of what was counted, which counts as something else.
    pub fn uncount_unprobed(&self, why: Unprobed, n: u64) {
        if let Some(region) = self.device_region() {
            region.control().unprobed[why as usize].fetch_sub(n, Ordering::Relaxed);
        }
    }

    /// Counts a launch of a patched kernel whose handlers read parameters, and have none.
    pub fn count_without_arguments(&self) {
        if let Some(region) = self.device_region() {
            region.control().without_arguments.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts what became of an image.
    pub fn count_image(&self, outcome: ImageOutcome) {
        if let Some(region) = self.device_region() {
            region.control().images[outcome as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a context's block was copied at its end: nothing is missing.
    pub fn note_last_copy(&self, slot: usize) {
        if let Some(region) = self.device_region() {
            region.control().slots[slot].is_last.store(1, Ordering::Release);
        }
    }

    /// Notes what CUDA answered when a context's block could not be copied: the first answer, since a context that a kernel has
    /// failed in may give others at its end.
    pub fn copy_failed(&self, slot: usize, answer: u32) {
        if let Some(region) = self.device_region() {
            let failure = &region.control().slots[slot].failure;
            let _ = failure.compare_exchange(0, answer, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether launches that begin now are part of what is recorded.
    #[inline]
    pub fn runs_twins_now(&self) -> bool {
        self.is_recording() && self.window.contains_now()
    }

    /// Whether what this GPU does is recorded.
    pub fn is_device_selected(&self, device: u32) -> bool {
        self.selection.contains(device, self.backend)
    }

    /// Whether it makes sense that a thread of the program waits for us.
    pub fn may_wait(&self) -> bool {
        self.is_recording() && !self.is_exiting() && !self.life.disarmed.load(Ordering::Acquire)
    }

    /// Asks the tracer for the twins of an image that the program has just loaded, and waits for them.
    ///
    /// # Errors
    /// Why it has none.
    pub fn ask_for_twins(&'static self, image: CodeAt, until: Instant) -> Result<Vec<Twin>, ImageOutcome> {
        self.device.exchange.ask(image, until, || self.may_wait())?.twins()
    }

    /// Asks for the twin of a kernel that the program had loaded before we came, by its symbol. Nobody waits for it: the worker
    /// does `then` with it, or with why there is none, unless the run ends before.
    pub fn ask_for_kernel(
        &'static self,
        symbol: String,
        then: impl FnOnce(Result<Vec<Twin>, ImageOutcome>) + Send + 'static,
    ) {
        let hand_over = move |answer: ImageAnswer| {
            let twins = answer.and_then(DeviceCode::twins);
            self.work_later(move || then(twins));
        };
        self.device.exchange.ask_later(Asked::Kernel(symbol), Box::new(hand_over));
    }

    /// Returns what makes handlers run inside kernels.
    fn kernel_code(&self) -> Option<&'static dyn KernelCode> {
        self.backend.kernel_code()
    }

    /// Runs originals from now on.
    pub(crate) fn stop_twins(&self) {
        self.kernel_code().into_iter().for_each(|it| it.stop_twins());
    }

    /// Advances the tracer's programs that are pending; returns true when none is left.
    fn poll_programs(&'static self) -> bool {
        self.kernel_code().is_none_or(|it| it.poll_programs(self))
    }

    /// Whether the tracer has programs that run in kernels of their own.
    pub fn has_programs(&self) -> bool {
        self.device_region().is_some_and(|it| it.control().has_programs.load(Ordering::Relaxed) != 0)
    }

    /// Tells the tracer that there is a context in which programs can run, and asks for them. Nobody waits for them: the worker
    /// does `then` with them, or with why there are none, unless the run ends before.
    pub fn ask_for_programs(&'static self, then: impl FnOnce(Result<Programs, ImageOutcome>) + Send + 'static) {
        let hand_over = move |answer: ImageAnswer| {
            let programs = answer.and_then(DeviceCode::programs);
            self.work_later(move || then(programs));
        };
        self.device.exchange.ask_later(Asked::Programs, Box::new(hand_over));
    }

    /// Counts a program that was launched in a context, by its slot.
    pub fn count_program(&self, slot: usize) {
        if let Some(region) = self.device_region() {
            let control = region.control();
            control.programs.slot.store(slot as u32, Ordering::Relaxed);
            control.slots[slot].swapped.fetch_add(1, Ordering::Relaxed);
            control.programs.launched.fetch_add(1, Ordering::Release);
        }
    }

    /// Tells the tracer what has become of its programs, and what CUDA answered where they failed.
    pub fn tell_of_programs(&self, state: ProgramsState, failure: u32) {
        if let Some(region) = self.device_region() {
            let account = &region.control().programs;
            account.failure.store(failure, Ordering::Relaxed);
            account.state.store(state as u32, Ordering::Release);
        }
    }

    /// Waits until the tracer's programs have ended, if they run in this process.
    pub fn wait_for_programs(&'static self) {
        if !self.has_programs() {
            return;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        while !is_over.load(Ordering::Acquire) && self.may_wait() {
            let flag = Arc::clone(&is_over);
            let job = self.work_later(move || flag.store(self.poll_programs(), Ordering::Release));
            // Their code may take long to load.
            while !self.wait_for_work(job) && self.may_wait() {
                sleep(LOOKS_EVERY);
            }
            // A job behind it may be what runs or ends them.
            self.device.worker.wait_for_another(job, LOOKS_AT_PROGRAMS_EVERY);
        }
    }

    /// Asks the tracer for the patches of a module that the program has just loaded, and waits for them.
    ///
    /// # Errors
    /// Why it has none.
    pub fn ask_for_patches(&'static self, module: CodeAt, until: Instant) -> Result<Patches, ImageOutcome> {
        self.device.exchange.ask(module, until, || self.may_wait())?.patches()
    }

    /// Has the worker do something.
    pub fn work_later(&'static self, work: impl FnOnce() + Send + 'static) -> Job {
        self.device.worker.add(Box::new(work))
    }

    /// Waits until a job is done; returns whether it is.
    pub fn wait_for_work(&'static self, job: Job) -> bool {
        self.device.worker.wait_for(job, TWIN_WITHIN, || self.may_wait())
    }

    /// Likewise where the run or the program ends.
    pub fn wait_for_last_work(&'static self, job: Job) -> bool {
        self.device.worker.wait_for(job, LAST_COPY_WITHIN, || true)
    }

    /// Does something with a twin that can be given up: `work` gets a flag that is set when nobody waits for it. Returns
    /// whether it was done in time.
    pub fn work_in_time(&'static self, until: Instant, work: impl FnOnce(&AtomicBool) + Send + 'static) -> bool {
        let (began, until) = (Instant::now(), self.device.exchange.limited(until));
        let is_given_up = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_given_up);
        let job = self.work_later(move || work(&flag));
        let is_done = self.device.worker.wait_for(job, until.saturating_duration_since(began), || self.may_wait());
        self.device.exchange.has_waited(began.elapsed(), !is_done);
        is_given_up.store(!is_done, Ordering::Release);
        is_done
    }

    /// Starts the thread that works with the GPU's driver. Called by a thread with the program's descriptors.
    pub(crate) fn start_worker(&'static self) -> io::Result<()> {
        if !self.wants(demand::DEVICE) {
            return Ok(());
        }
        let work = move || self.caught(|| untraced(|| self.device.worker.run(|job| _ = self.guarded(job))));
        spawn_with(WORKERS_STACK_BYTES, work).map(|_| ())
    }

    /// Starts the thread that sends images. Called by the listener, whose descriptors it shares.
    pub(crate) fn start_courier(&'static self) {
        if !self.wants(demand::DEVICE) {
            return;
        }
        if spawn(move || self.caught(|| self.carry_images())).is_err() {
            self.device.exchange.close();
        }
    }

    fn carry_images(&'static self) {
        while let Some((number, asked)) = self.device.exchange.next() {
            let carried = match asked {
                Asked::Image(image) => self.carry_image(number, image),
                Asked::Kernel(symbol) => self.carry_text(number, image_kind::KERNEL, &symbol),
                Asked::Programs => self.carry_text(number, image_kind::PROGRAMS, ""),
            };
            if let Err(outcome) = carried {
                self.take_answer(number, Err(outcome));
            }
        }
    }

    /// Hands an answer to whoever wants it. An image whose thread has left has counted as one without an answer.
    fn take_answer(&self, number: u64, answer: ImageAnswer) {
        if let (Some(Err(outcome)), Some(region)) = (self.device.exchange.answer(number, answer), self.device_region())
        {
            region.control().images[ImageOutcome::NoAnswer as usize].fetch_sub(1, Ordering::Relaxed);
            self.count_image(outcome);
        }
    }

    /// Sends text of ours, such as the symbol of a kernel.
    fn carry_text(&self, number: u64, kind: u64, text: &str) -> Result<(), ImageOutcome> {
        let mut file = ImageFile::new().map_err(|_| ImageOutcome::NoAnswer)?;
        file.add_text(text)?;
        self.send_image(number, file, Sent { kind, n_modules: 0, text: String::new() })
    }

    /// Sends a copy of an image.
    fn carry_image(&self, number: u64, image: CodeAt) -> Result<(), ImageOutcome> {
        let (file, sent) = self.copy_image(image)?;
        self.device.exchange.has_copied(number);
        self.send_image(number, file, sent)
    }

    /// Copies the PTX of an image, or the cubin that it is.
    fn copy_image(&self, image: CodeAt) -> Result<(ImageFile, Sent), ImageOutcome> {
        let mut memory = ProgramMemory::new().map_err(|_| ImageOutcome::Unreadable)?;
        let (loaded, address) = match image {
            CodeAt::Memory(address) => (None, address),
            CodeAt::Path(path) => {
                let file = LoadedFile::read(path, &mut memory)?;
                let address = file.address();
                (Some(file), address)
            }
        };
        let mut file = ImageFile::new().map_err(|_| ImageOutcome::NoAnswer)?;
        let sent = match self.kernel_code().ok_or(ImageOutcome::NoPortableCode)?.code_in(address, &mut memory)? {
            ImageCode::Portable(all) => {
                all.iter().try_for_each(|it| file.add(it))?;
                Sent { kind: image_kind::PORTABLE, n_modules: all.len() as u64, text: String::new() }
            }
            ImageCode::Cubin { address, bytes } => {
                file.add_cubin(address, bytes)?;
                let text = places_of_portable_code(loaded.as_ref(), &mut memory);
                Sent { kind: image_kind::CUBIN, n_modules: 0, text }
            }
        };
        Ok((file, sent))
    }

    fn send_image(&self, number: u64, file: ImageFile, sent: Sent) -> Result<(), ImageOutcome> {
        let Sent { kind, n_modules, text } = sent;
        let (memory, bytes) = file.seal().map_err(|_| ImageOutcome::NoAnswer)?;
        let ComputeCapabilities { least, greatest } =
            self.kernel_code().map_or(ComputeCapabilities::default(), |it| it.compute_capabilities());
        let words = [number, n_modules, bytes, least.into(), greatest.into(), kind];
        let message = Message::new(IMAGE, &words, text);
        let until = Instant::now() + TWIN_WITHIN;
        while !self.socket.send_with(&message, &[memory.as_fd()]) {
            if Instant::now() >= until || !self.may_wait() {
                return Err(ImageOutcome::NoAnswer);
            }
            sleep(SENDS_EVERY);
        }
        Ok(())
    }

    /// Handles the tracer's answer to an image. Called by the listener.
    pub(crate) fn take_twin(&self, message: &Message, descriptors: &[OwnedFd]) {
        let [number, status, bytes, ..] = message.words;
        self.take_answer(number, answer_of(status, bytes, descriptors.first()));
    }

    /// Copies so much of the blocks of all contexts. Called by the listener.
    pub(crate) fn read_device(&'static self, number: u64, extent: CopyExtent) {
        if !self.wants(demand::DEVICE) {
            return self.count_unexpected();
        }
        self.work_later(move || {
            self.kernel_code().into_iter().for_each(|it| it.copy_blocks(self, extent));
            if let Some(region) = self.device_region() {
                region.control().answered.store(number, Ordering::Release);
            }
        });
    }

    /// Copies the blocks for the last time; twins that stay in the program do nothing from then on. At the program's exit
    /// they are not told so: what runs may go on to the end.
    pub(crate) fn leave_twins(&'static self) {
        if !self.wants(demand::DEVICE) {
            return;
        }
        let disables = !self.is_exiting();
        let job =
            self.work_later(move || self.kernel_code().into_iter().for_each(|it| it.leave_blocks(self, disables)));
        self.wait_for_last_work(job);
        self.kernel_code().into_iter().for_each(|it| it.close_twins());
    }
}

/// What an IMAGE says of its memory.
struct Sent {
    /// One of [`image_kind`].
    kind: u64,
    /// Of PTX.
    n_modules: u64,
    /// Of a cubin.
    text: String,
}

fn answer_of(status: u64, bytes: u64, memory: Option<&OwnedFd>) -> ImageAnswer {
    match status {
        twin_status::NOTHING => Err(ImageOutcome::NothingToProbe),
        twin_status::WOVEN if bytes <= MOST_IMAGE_BYTES => {
            let contents = memory.and_then(|it| region::contents(it.as_fd(), bytes as usize).ok());
            contents.and_then(|it| DeviceCode::decode(&it)).ok_or(ImageOutcome::NoAnswer)
        }
        twin_status::FAILED => Err(ImageOutcome::NotWoven),
        twin_status::NO_PORTABLE_CODE => Err(ImageOutcome::NoPortableCode),
        twin_status::OLDER_PORTABLE_CODE => Err(ImageOutcome::OlderPortableCode),
        twin_status::AMBIGUOUS => Err(ImageOutcome::Ambiguous),
        twin_status::NOT_IN_FILES => Err(ImageOutcome::NotInFiles),
        // Also [`twin_status::TOO_MANY`].
        _ => Err(ImageOutcome::NoAnswer),
    }
}
