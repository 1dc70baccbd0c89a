"""The migration from Windows: what its administrator collects, the plan, and the import.

    scripts              the PowerShell scripts in `powershell/`, with their SHA-256
    collection           the JSON file of definitions that a script wrote
    lqs                  files of MSMQ's storage folder, as a second source
    security_descriptor  owners and access lists, as bytes of Windows
    rights               rights of Windows as entries of access control
    plan, lists, steps   the differences to a queue manager, and their removal
    windows_message      copies of messages, as packets
    import_copies        their import, each once
    compare, drain       two hosts side by side, and the steps of replacing one

Everything here is a client of the daemon.  Nothing runs on Windows but the scripts.
"""
