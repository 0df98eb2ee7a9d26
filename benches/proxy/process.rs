//! A child process: pinned to a core, ended by its id, asked for its processor time and memory through `/proc`.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::time::sleep;

/// The core of the program under test.
pub const CORE_UNDER_TEST: usize = 0;
/// The core of the load generator and the scripted upstream.
pub const CORE_FOR_LOAD: usize = 1;

/// Between two looks at a process that should become quiet.
const LOOK: Duration = Duration::from_millis(200);
/// Quiet is a process that used at most one tick in so many looks.
const QUIET_LOOKS: u32 = 4;

/// Ends with this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts the command. Its standard input stays open until this value is dropped.
    pub fn start(mut command: Command) -> anyhow::Result<Self> {
        let name = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).spawn();
        Ok(Self {
            child: child.with_context(|| format!("{name} cannot be started"))?,
        })
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        anyhow::ensure!(ended.is_none(), "a process ended too early: {ended:?}");
        Ok(())
    }

    /// Processor time of all its threads until now, in microseconds. The kernel counts in ticks of 10 ms.
    pub fn processor_micros(&self) -> anyhow::Result<f64> {
        let stat = self.read("stat")?;
        // The name in front may hold spaces; fields 14 and 15 of proc(5) are user and system time.
        let (_, fields) = stat.rsplit_once(')').context("a name")?;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().unwrap_or(0))
            .sum();
        Ok(ticks as f64 * 1e6 / ticks_per_second())
    }

    /// Resident memory now, in MB (10^6 bytes).
    pub fn resident(&self) -> anyhow::Result<f64> {
        self.status("VmRSS:")
    }

    /// The most resident memory since the start or the last [`Self::forget_peak`], in MB.
    pub fn peak(&self) -> anyhow::Result<f64> {
        self.status("VmHWM:")
    }

    /// Begins a new peak (proc(5), `clear_refs`).
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        let path = format!("/proc/{}/clear_refs", self.child.id());
        std::fs::write(path, "5").context("the peak of memory cannot be reset")
    }

    /// Waits until the process does nothing, at most `limit`. Returns whether it became quiet.
    pub async fn quiet(&self, limit: Duration) -> anyhow::Result<bool> {
        let tick = 1e6 / ticks_per_second();
        let begin = Instant::now();
        let (mut before, mut looks) = (self.processor_micros()?, 0);
        while begin.elapsed() < limit {
            sleep(LOOK).await;
            looks += 1;
            let now = self.processor_micros()?;
            if now - before > tick * 1.5 {
                (before, looks) = (now, 0);
            } else if looks == QUIET_LOOKS {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn status(&self, field: &str) -> anyhow::Result<f64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|line| line.split_whitespace().next());
        let kilobytes: f64 = kilobytes.context("a field of status")?.parse()?;
        Ok(kilobytes * 1024.0 / 1e6)
    }

    fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        std::fs::read_to_string(&path).with_context(|| path)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // By its id, and waited for. It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command, on one core if that can be done.
pub fn pinned(core: usize, program: impl AsRef<OsStr>) -> Command {
    if !can_pin() {
        return Command::new(program);
    }
    // taskset becomes the program, so its id is the program's.
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(program);
    command
}

/// Puts this process on the core for load. Threads that it starts later stay there.
pub fn pin_this(core: usize) {
    if can_pin() {
        let id = std::process::id().to_string();
        let mut command = Command::new("taskset");
        command.args(["-a", "-c", "-p"]).arg(core.to_string());
        let _ = command.arg(id).stdout(Stdio::null()).status();
    }
}

/// Whether `taskset` is there and the machine has two cores.
pub fn can_pin() -> bool {
    static PINS: OnceLock<bool> = OnceLock::new();
    *PINS.get_or_init(|| {
        // Asked with taskset itself: this process may be on one core already.
        let mut command = Command::new("taskset");
        command.args(["-c", "0,1", "true"]);
        let output = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        output.is_ok_and(|status| status.success())
            && std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
    })
}

fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let output = Command::new("getconf").arg("CLK_TCK").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        // Linux has 100 on every common architecture.
        text.ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(100.0)
    })
}
