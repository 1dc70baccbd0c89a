<#
.SYNOPSIS
Writes the definitions of Message Queuing on this computer to a JSON file.  Changes nothing.

.DESCRIPTION
Collects the queue manager's settings, all private and public queues with their properties and
security descriptors, the number of their messages, outgoing queues, triggers and rules, and with
-DistributionLists the lists of the Active Directory.  Needs Windows PowerShell 5.1.  Run it as an
administrator: other users see less, and each thing that could not be read is noted in the file.

.EXAMPLE
.\Export-MsmqDefinition.ps1 -Output hosta.json
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory = $true)][string]$Output,
    [switch]$DistributionLists
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Add-Type -AssemblyName System.Messaging

# The one function of Windows that neither .NET nor a cmdlet offers: it reads a security descriptor.
Add-Type -Namespace QmdMigration -Name Native -MemberDefinition @'
[DllImport("mqrt.dll", CharSet = CharSet.Unicode)]
public static extern int MQGetQueueSecurity(
    string formatName, int information, byte[] descriptor, int length, out int needed);
'@

$notes = New-Object System.Collections.ArrayList

function Add-Note([string]$About, [string]$Text) {
    [void]$notes.Add(@{ about = $About; text = $Text })
}

function Get-Attempt([string]$About, [scriptblock]$Read, $Otherwise = $null) {
    # Returns what the block returns; if it fails, a note and the other value.
    try { return (& $Read) } catch { Add-Note $About $_.Exception.Message; return $Otherwise }
}

function Get-Moment($Value) {
    if ($null -eq $Value) { return $null }
    return $Value.ToUniversalTime().ToString('yyyy-MM-ddTHH:mm:ssZ')
}

function Get-QueueSecurity([string]$FormatName) {
    # Owner, group and access list (1 + 2 + 4), as base64 of the self-relative descriptor.
    $needed = 0
    $buffer = New-Object byte[] 65536
    $code = [QmdMigration.Native]::MQGetQueueSecurity($FormatName, 7, $buffer, $buffer.Length, [ref]$needed)
    if ($code -ne 0) { throw ('MQGetQueueSecurity failed: 0x{0:X8}' -f $code) }
    return [Convert]::ToBase64String($buffer, 0, $needed)
}

function Get-AccountNames([string]$Descriptor) {
    # The names of the accounts in a descriptor, by their security identifiers.
    $names = @{}
    if (-not $Descriptor) { return $names }
    $raw = [Convert]::FromBase64String($Descriptor)
    $parsed = New-Object System.Security.AccessControl.RawSecurityDescriptor $raw, 0
    $found = @($parsed.Owner)
    if ($null -ne $parsed.DiscretionaryAcl) {
        $found += @($parsed.DiscretionaryAcl | ForEach-Object { $_.SecurityIdentifier })
    }
    foreach ($sid in $found) {
        if ($null -eq $sid) { continue }
        try { $names[$sid.Value] = $sid.Translate([System.Security.Principal.NTAccount]).Value }
        catch { $names[$sid.Value] = '' }
    }
    return $names
}

function Get-Definition($Queue, [bool]$Public, $Counts) {
    $path = $Queue.Path
    $format = Get-Attempt $path { $Queue.FormatName } ''
    $descriptor = Get-Attempt $path { Get-QueueSecurity $format } ''
    $count = $Counts[$Queue.QueueName.ToLowerInvariant()]
    return @{
        name = $Queue.QueueName
        public = $Public
        format_name = $format
        instance = Get-Attempt $path { $Queue.Id.ToString() } ''
        label = Get-Attempt $path { $Queue.Label } ''
        transactional = Get-Attempt $path { $Queue.Transactional }
        journal = Get-Attempt $path { $Queue.UseJournalQueue }
        quota_kb = Get-Attempt $path { $Queue.MaximumQueueSize }
        journal_quota_kb = Get-Attempt $path { $Queue.MaximumJournalSize }
        authenticate = Get-Attempt $path { $Queue.Authenticate }
        privacy = Get-Attempt $path { $Queue.EncryptionRequired.ToString().ToLowerInvariant() }
        base_priority = Get-Attempt $path { [int]$Queue.BasePriority }
        type = Get-Attempt $path { $Queue.Category.ToString() } ''
        multicast = Get-Attempt $path { $Queue.MulticastAddress } ''
        created_at = Get-Attempt $path { Get-Moment $Queue.CreateTime }
        modified_at = Get-Attempt $path { Get-Moment $Queue.LastModifyTime }
        security_base64 = $descriptor
        accounts = Get-Attempt $path { Get-AccountNames $descriptor } @{}
        messages = $(if ($null -eq $count) { $null } else { [long]$count.MessagesInQueue })
        journal_messages = $(if ($null -eq $count) { $null } else { [long]$count.MessagesInJournalQueue })
    }
}

function Get-Counts() {
    # The performance counters of queues, by the names of the queues without their computer.
    $counts = @{}
    foreach ($row in @(Get-CimInstance -ClassName Win32_PerfRawData_MSMQ_MSMQQueue)) {
        $short = ($row.Name -replace '^[^\\]+\\', '').ToLowerInvariant()
        $counts[$short] = $row
    }
    return $counts
}

function Get-Values([string]$Path) {
    # The values of a registry key as text, by their names.
    $values = @{}
    $key = Get-Item -LiteralPath $Path
    foreach ($name in $key.GetValueNames()) {
        $value = $key.GetValue($name)
        if ($value -is [byte[]]) { $value = [BitConverter]::ToString($value) }
        $values[$name] = [string]$value
    }
    return $values
}

function Get-TriggerPart([string]$Kind) {
    # The keys of all triggers, or of all rules, with the values of the keys below them.
    $root = "HKLM:\SOFTWARE\Microsoft\MSMQ\Triggers\Data\$Kind"
    if (-not (Test-Path -LiteralPath $root)) { return }
    foreach ($key in @(Get-ChildItem -LiteralPath $root)) {
        $below = @(Get-ChildItem -LiteralPath $key.PSPath -Recurse | ForEach-Object {
            @{ name = $_.PSChildName; values = (Get-Values $_.PSPath) }
        })
        @{ id = $key.PSChildName; values = (Get-Values $key.PSPath); below = $below }
    }
}

function Get-Texts($Thing) {
    # All properties of an object of a cmdlet, as text.
    $texts = @{}
    foreach ($property in $Thing.PSObject.Properties) { $texts[$property.Name] = [string]$property.Value }
    return $texts
}

function Get-ListMember([string]$DistinguishedName) {
    # A member of a list, with the name by which it is sent to.
    $entry = [ADSI]"LDAP://$DistinguishedName"
    $class = [string]$entry.objectClass[$entry.objectClass.Count - 1]
    $path = ''
    if ($class -eq 'mSMQQueue' -and $DistinguishedName -match '^CN=([^,]+),CN=msmq,CN=([^,]+),') {
        $path = $Matches[2] + '\' + $Matches[1]
    }
    $formatName = [string]$entry.Properties['msMQ-Recipient-FormatName'].Value
    $guid = (New-Object Guid (, $entry.objectGUID.Value)).ToString()
    return @{ class = $class; guid = $guid; path = $path; format_name = $formatName; dn = $DistinguishedName }
}

function Get-Lists() {
    $searcher = [ADSISearcher]'(|(objectClass=msMQ-Group)(&(objectClass=group)(groupType=2)))'
    $searcher.PageSize = 500
    foreach ($found in $searcher.FindAll()) {
        $members = @($found.Properties['member'] | ForEach-Object { Get-ListMember $_ })
        $queues = @($members | Where-Object { $_.class -in 'mSMQQueue', 'msMQ-Custom-Recipient', 'msMQ-Group' })
        if ($queues.Count -eq 0) { continue }
        $guid = (New-Object Guid (, $found.Properties['objectguid'][0])).ToString()
        @{ name = [string]$found.Properties['name'][0]; guid = $guid; members = $members }
    }
}

$counts = Get-Attempt 'counters' { Get-Counts } @{}
$private = @([System.Messaging.MessageQueue]::GetPrivateQueuesByMachine('.'))
$public = @(Get-Attempt 'public queues' {
    [System.Messaging.MessageQueue]::GetPublicQueuesByMachine($env:COMPUTERNAME)
} @())
$queues = @()
foreach ($queue in $private) { $queues += Get-Definition $queue $false $counts }
foreach ($queue in $public) { if ($null -ne $queue) { $queues += Get-Definition $queue $true $counts } }

$outgoing = @(Get-Attempt 'outgoing queues' { Get-MsmqOutgoingQueue | ForEach-Object { Get-Texts $_ } } @())
$manager = Get-Attempt 'queue manager' { Get-Texts (Get-MsmqQueueManager) } @{}
$parameters = Get-Attempt 'parameters' { Get-Values 'HKLM:\SOFTWARE\Microsoft\MSMQ\Parameters' } @{}
$machine = Get-Attempt 'machine' { Get-Values 'HKLM:\SOFTWARE\Microsoft\MSMQ\Parameters\MachineCache' } @{}
$triggers = @(Get-Attempt 'triggers' { Get-TriggerPart 'Triggers' } @())
$rules = @(Get-Attempt 'rules' { Get-TriggerPart 'Rules' } @())
$lists = @()
if ($DistributionLists) { $lists = @(Get-Attempt 'distribution lists' { Get-Lists } @()) }

$collection = @{
    qmd_windows_collection = 1
    computer = $env:COMPUTERNAME
    collected_at = Get-Moment (Get-Date)
    windows = [Environment]::OSVersion.VersionString
    queue_manager = @{ properties = $manager; parameters = $parameters; machine = $machine }
    queues = @($queues)
    outgoing = @($outgoing | Where-Object { $null -ne $_ })
    triggers = @($triggers | Where-Object { $null -ne $_ })
    rules = @($rules | Where-Object { $null -ne $_ })
    lists = @($lists | Where-Object { $null -ne $_ })
    notes = @($notes)
}
$text = ConvertTo-Json -InputObject $collection -Depth 8 -Compress
# The current folder of .NET is not that of PowerShell.
$file = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($Output)
[System.IO.File]::WriteAllText($file, $text)
Write-Output ('{0} queues, {1} notes: {2}' -f $queues.Count, $notes.Count, $Output)
