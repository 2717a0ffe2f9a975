//! The settings of Felix: names in v2 and v3, and form of the value (libcalico-go, `lib/apis/v3/felixconfig.go`).

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Boolean,
    Integer,
    /// A number of 32 bits.
    Mask,
    /// A text, omitted when it is empty.
    Text,
    /// A text, written even when it is empty.
    TextOrEmpty,
    /// A log level.
    Level,
    /// A number of seconds, with an optional fraction.
    Seconds,
    Milliseconds,
    /// Ports that policies cannot close.
    Failsafe,
    /// The form in v2 is unknown, because v2 never had this setting.
    Unknown,
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    pub v2: &'static str,
    pub v3: &'static str,
    pub form: Form,
}

const fn setting(v2: &'static str, v3: &'static str, form: Form) -> Setting {
    Setting { v2, v3, form }
}

/// All settings in the order of v3's list.
pub const SETTINGS: [Setting; 69] = [
    setting(
        "UseInternalDataplaneDriver",
        "useInternalDataplaneDriver",
        Form::Boolean,
    ),
    setting("DataplaneDriver", "dataplaneDriver", Form::Text),
    setting("Ipv6Support", "ipv6Support", Form::Boolean),
    setting("RouteRefreshInterval", "routeRefreshInterval", Form::Seconds),
    setting(
        "IptablesRefreshInterval",
        "iptablesRefreshInterval",
        Form::Seconds,
    ),
    setting(
        "IptablesPostWriteCheckIntervalSecs",
        "iptablesPostWriteCheckInterval",
        Form::Seconds,
    ),
    setting("IptablesLockFilePath", "iptablesLockFilePath", Form::Text),
    setting("IptablesLockTimeoutSecs", "iptablesLockTimeout", Form::Seconds),
    setting(
        "IptablesLockProbeIntervalMillis",
        "iptablesLockProbeInterval",
        Form::Milliseconds,
    ),
    setting("IpsetsRefreshInterval", "ipsetsRefreshInterval", Form::Seconds),
    setting("MaxIpsetSize", "maxIpsetSize", Form::Integer),
    setting("IptablesBackend", "iptablesBackend", Form::TextOrEmpty),
    setting("XDPRefreshInterval", "xdpRefreshInterval", Form::Seconds),
    setting("NetlinkTimeoutSecs", "netlinkTimeout", Form::Seconds),
    setting("MetadataAddr", "metadataAddr", Form::Text),
    setting("MetadataPort", "metadataPort", Form::Integer),
    setting("OpenstackRegion", "openstackRegion", Form::Text),
    setting("InterfacePrefix", "interfacePrefix", Form::Text),
    setting("InterfaceExclude", "interfaceExclude", Form::Text),
    setting("ChainInsertMode", "chainInsertMode", Form::Text),
    setting(
        "DefaultEndpointToHostAction",
        "defaultEndpointToHostAction",
        Form::Text,
    ),
    setting(
        "IptablesFilterAllowAction",
        "iptablesFilterAllowAction",
        Form::Text,
    ),
    setting(
        "IptablesMangleAllowAction",
        "iptablesMangleAllowAction",
        Form::Text,
    ),
    setting("LogPrefix", "logPrefix", Form::Text),
    setting("LogFilePath", "logFilePath", Form::Text),
    setting("LogSeverityFile", "logSeverityFile", Form::Level),
    setting("LogSeverityScreen", "logSeverityScreen", Form::Level),
    setting("LogSeveritySys", "logSeveritySys", Form::Level),
    setting("IpInIpEnabled", "ipipEnabled", Form::Boolean),
    setting("IpInIpMtu", "ipipMTU", Form::Integer),
    setting("VXLANEnabled", "vxlanEnabled", Form::Boolean),
    setting("VXLANMTU", "vxlanMTU", Form::Integer),
    setting("VXLANPort", "vxlanPort", Form::Integer),
    setting("VXLANVNI", "vxlanVNI", Form::Integer),
    setting("ReportingIntervalSecs", "reportingInterval", Form::Seconds),
    setting("ReportingTTLSecs", "reportingTTL", Form::Seconds),
    setting(
        "EndpointReportingEnabled",
        "endpointReportingEnabled",
        Form::Boolean,
    ),
    setting(
        "EndpointReportingDelaySecs",
        "endpointReportingDelay",
        Form::Seconds,
    ),
    setting("IptablesMarkMask", "iptablesMarkMask", Form::Mask),
    setting(
        "DisableConntrackInvalidCheck",
        "disableConntrackInvalidCheck",
        Form::Boolean,
    ),
    setting("HealthEnabled", "healthEnabled", Form::Boolean),
    setting("HealthHost", "healthHost", Form::TextOrEmpty),
    setting("HealthPort", "healthPort", Form::Integer),
    setting(
        "PrometheusMetricsEnabled",
        "prometheusMetricsEnabled",
        Form::Boolean,
    ),
    setting("PrometheusMetricsHost", "prometheusMetricsHost", Form::Text),
    setting("PrometheusMetricsPort", "prometheusMetricsPort", Form::Integer),
    setting(
        "PrometheusGoMetricsEnabled",
        "prometheusGoMetricsEnabled",
        Form::Boolean,
    ),
    setting(
        "PrometheusProcessMetricsEnabled",
        "prometheusProcessMetricsEnabled",
        Form::Boolean,
    ),
    setting(
        "FailsafeInboundHostPorts",
        "failsafeInboundHostPorts",
        Form::Failsafe,
    ),
    setting(
        "FailsafeOutboundHostPorts",
        "failsafeOutboundHostPorts",
        Form::Failsafe,
    ),
    setting("KubeNodePortRanges", "kubeNodePortRanges", Form::Unknown),
    setting("PolicySyncPathPrefix", "policySyncPathPrefix", Form::Text),
    setting("UsageReportingEnabled", "usageReportingEnabled", Form::Boolean),
    setting(
        "UsageReportingInitialDelaySecs",
        "usageReportingInitialDelay",
        Form::Seconds,
    ),
    setting(
        "UsageReportingIntervalSecs",
        "usageReportingInterval",
        Form::Seconds,
    ),
    setting("NATPortRange", "natPortRange", Form::Unknown),
    setting("NATOutgoingAddress", "natOutgoingAddress", Form::Text),
    setting("DeviceRouteSourceAddress", "deviceRouteSourceAddress", Form::Text),
    setting("DeviceRouteProtocol", "deviceRouteProtocol", Form::Integer),
    setting("RemoveExternalRoutes", "removeExternalRoutes", Form::Boolean),
    setting("ExternalNodesCIDRList", "externalNodesList", Form::Unknown),
    setting("DebugMemoryProfilePath", "debugMemoryProfilePath", Form::Text),
    setting(
        "DebugDisableLogDropping",
        "debugDisableLogDropping",
        Form::Boolean,
    ),
    setting(
        "DebugSimulateCalcGraphHangAfter",
        "debugSimulateCalcGraphHangAfter",
        Form::Seconds,
    ),
    setting(
        "DebugSimulateDataplaneHangAfter",
        "debugSimulateDataplaneHangAfter",
        Form::Seconds,
    ),
    setting(
        "IptablesNATOutgoingInterfaceFilter",
        "iptablesNATOutgoingInterfaceFilter",
        Form::Text,
    ),
    setting(
        "SidecarAccelerationEnabled",
        "sidecarAccelerationEnabled",
        Form::Boolean,
    ),
    setting("XDPEnabled", "xdpEnabled", Form::Boolean),
    setting("GenericXDPEnabled", "genericXDPEnabled", Form::Boolean),
];
