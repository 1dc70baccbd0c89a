"""Make a Samba domain controller in one folder, without root and without the system's settings.

    /usr/bin/python3 -I provision.py FOLDER ADDRESS PASSWORD REALM

Samba's modules belong to the system's interpreter.  `provision` is called directly, because
`samba-tool` would set permissions on sysvol that need root, and these tests do not need sysvol.

"""

import logging
import os
import sys

from samba.auth import system_session
from samba.dsdb import DS_DOMAIN_FUNCTION_2008_R2
from samba.param import LoadParm
from samba.provision import provision

folder, address, password, realm = sys.argv[1:]
domain = realm.split(".")[0]
for name in ("private/tls", "state/sysvol", "cache", "lock", "run", "bind-dns", "ncalrpc"):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
os.chmod(os.path.join(folder, "private"), 0o700)
configuration = os.path.join(folder, "smb.conf")
# Every folder is named, so that no file outside of this one is changed; and the file exists
#
# before, so that the system's file is not used.
with open(configuration, "w") as stream:
    stream.write(f"""[global]
  netbios name = DC1
  workgroup = {domain}
  realm = {realm}
  server role = active directory domain controller
  server services = ldap, kdc
  dcerpc endpoint servers = none
  interfaces = {address}/8
  bind interfaces only = yes
  private dir = {folder}/private
  state directory = {folder}/state
  cache directory = {folder}/cache
  lock directory = {folder}/lock
  pid directory = {folder}/run
  binddns dir = {folder}/bind-dns
  ncalrpc dir = {folder}/ncalrpc
  ntp signd socket directory = {folder}/ntp_signd
  winbindd socket directory = {folder}/winbindd
  log file = {folder}/samba.log
  max log size = 0
  ldap server require strong auth = allow_sasl_over_tls
  tls enabled = yes
  tls keyfile = {folder}/private/tls/key.pem
  tls certfile = {folder}/private/tls/cert.pem
  tls cafile = {folder}/private/tls/ca.pem
[sysvol]
  path = {folder}/state/sysvol
  read only = no
[netlogon]
  path = {folder}/state/sysvol/{realm.lower()}/scripts
  read only = no
""")

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
parameters = LoadParm()
parameters.load(configuration)
provision(
    logging.getLogger(),
    system_session(),
    smbconf=configuration,
    lp=parameters,
    realm=realm,
    domain=domain,
    hostname="dc1",
    hostip=address,
    hostip6=None,
    adminpass=password,
    serverrole="active directory domain controller",
    dns_backend="NONE",
    dom_for_fun_level=DS_DOMAIN_FUNCTION_2008_R2,
    skip_sysvolacl=True,
    use_ntvfs=False,
    backend_store="tdb",
    plaintext_secrets=True,
    batch_mode=True,
)
