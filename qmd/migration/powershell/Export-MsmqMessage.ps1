<#
.SYNOPSIS
Writes copies of the messages of queues on this computer to a file, one line of JSON for each.

.DESCRIPTION
Opens each queue for peeking only, so that no message can be removed.  Messages that arrive or are
received meanwhile may be missing or be there: stop the programs that use the queues first.  Needs
Windows PowerShell 5.1, and the right to peek.

.EXAMPLE
.\Export-MsmqMessage.ps1 -Queue '.\private$\orders', '.\private$\orders\journal$' -Output hosta.messages.jsonl
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory = $true)][string[]]$Queue,
    [Parameter(Mandatory = $true)][string]$Output
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Add-Type -AssemblyName System.Messaging

function Get-Value([scriptblock]$Read) {
    # Some properties fail for messages that have none.
    try { return (& $Read) } catch { return $null }
}

function Get-Bytes($Message) {
    $stream = $Message.BodyStream
    $buffer = New-Object byte[] $stream.Length
    $at = 0
    while ($at -lt $buffer.Length) {
        $count = $stream.Read($buffer, $at, $buffer.Length - $at)
        if ($count -le 0) { throw 'a body ends early' }
        $at += $count
    }
    return [Convert]::ToBase64String($buffer)
}

function Get-Seconds($Span) {
    # Null: no limit.
    if ($null -eq $Span -or $Span.TotalSeconds -ge 4294967295) { return $null }
    return [long][Math]::Ceiling($Span.TotalSeconds)
}

function Get-Milliseconds($Time) {
    if ($null -eq $Time) { return $null }
    return [long](($Time.ToUniversalTime() - [DateTime]'1970-01-01').TotalMilliseconds)
}

function Get-Base64($Bytes) {
    if ($null -eq $Bytes) { return '' }
    return [Convert]::ToBase64String($Bytes)
}

function Get-Row($Message, [string]$From) {
    return @{
        qmd_windows_message = 1
        computer = $env:COMPUTERNAME
        queue = $From
        id = $Message.Id
        lookup_id = [string]$Message.LookupId
        label = $Message.Label
        body_base64 = Get-Bytes $Message
        body_type = $Message.BodyType
        priority = [int](Get-Value { $Message.Priority })
        recoverable = Get-Value { $Message.Recoverable }
        transaction_id = Get-Value { $Message.TransactionId }
        first_in_transaction = Get-Value { $Message.IsFirstInTransaction }
        last_in_transaction = Get-Value { $Message.IsLastInTransaction }
        correlation_id = $Message.CorrelationId
        application_tag = $Message.AppSpecific
        extension_base64 = Get-Base64 $Message.Extension
        response_queue = Get-Value { $Message.ResponseQueue.FormatName }
        admin_queue = Get-Value { $Message.AdministrationQueue.FormatName }
        acknowledge = [int](Get-Value { $Message.AcknowledgeType })
        class = [int](Get-Value { $Message.Acknowledgment })
        sent_at_ms = Get-Milliseconds (Get-Value { $Message.SentTime })
        arrived_at_ms = Get-Milliseconds (Get-Value { $Message.ArrivedTime })
        time_to_be_received_s = Get-Seconds (Get-Value { $Message.TimeToBeReceived })
        dead_letter = Get-Value { $Message.UseDeadLetterQueue }
        journal = Get-Value { $Message.UseJournalQueue }
        sender_id_base64 = Get-Base64 (Get-Value { $Message.SenderId })
    }
}

# The current folder of .NET is not that of PowerShell.
$file = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($Output)
$encoding = New-Object System.Text.UTF8Encoding $false
$writer = New-Object System.IO.StreamWriter $file, $false, $encoding
try {
    foreach ($path in $Queue) {
        # Peek is all that this access mode allows.
        $opened = New-Object System.Messaging.MessageQueue $path, ([System.Messaging.QueueAccessMode]::Peek)
        $opened.MessageReadPropertyFilter.SetAll()
        $messages = $opened.GetMessageEnumerator2()
        $count = 0
        while ($messages.MoveNext()) {
            $writer.WriteLine((ConvertTo-Json -InputObject (Get-Row $messages.Current $path) -Compress))
            $count += 1
        }
        $messages.Close()
        $opened.Close()
        Write-Output ('{0}: {1} messages' -f $path, $count)
    }
}
finally { $writer.Close() }
