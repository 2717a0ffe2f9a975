//! The categories of the failures that an agent reports: values in the status, and headings of the runbook.

use strum::{IntoStaticStr, VariantArray};

/// The category of a failure that an agent reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum FailureCategory {
    /// A file or a folder cannot be read, written or removed.
    HostFile,
    /// The agent has no netlink socket.
    NetlinkSocket,
    /// The kernel has refused a request about a link, an address, a route or a connection.
    NetlinkRequest,
    /// The processes of the host cannot be read.
    ProcessList,
    /// The agent sees its own processes only.
    HostPidMissing,
    /// A program cannot be started.
    ProgramMissing,
    /// The pipe to a program broke.
    ProgramPipe,
    /// A program has exited with an error.
    ProgramRefused,
    /// A program has not ended in time.
    ProgramTimedOut,
    /// A program has printed too much.
    ProgramOutput,
    /// The output of a program was not understood.
    ProgramAnswer,
    /// A kernel parameter cannot be read.
    SysctlFile,
    /// A kernel parameter is not the expected number.
    SysctlValue,
    /// A chain of flannel is in a table that iptables cannot read.
    FirewallIncompatible,
    /// The object of the firewall to delete is not flannel's.
    FirewallObject,
    /// A record of libcni about the attachment of a pod is malformed.
    CniRecord,
    /// The journal cannot be read or written.
    JournalFile,
    /// Another agent uses the journal.
    JournalTaken,
    /// A record of the journal cannot be read.
    JournalBroken,
    /// The host has changed between the observation and the step.
    HostChanged,
    /// The journal has no copy of a file, or the copy differs from the saved one.
    BackupLost,
    /// A step ran, and the object that it removed is present again.
    StepUndone,
    /// The facts or the settings forbid the next step.
    Contradiction,
    /// The agent has a goal and no settings.
    SettingsMissing,
}

impl FailureCategory {
    /// All categories.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name, as in a status and in the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl From<FailureCategory> for String {
    fn from(category: FailureCategory) -> Self {
        category.as_str().to_owned()
    }
}
