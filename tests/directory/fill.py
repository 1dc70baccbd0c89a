"""Put a computer with many queues, and a list of them, into a stopped domain, in one transaction.

    /usr/bin/python3 -I fill.py FOLDER COUNT

Over LDAP every addition is a transaction with a sync of its own.

"""

import sys

from samba.auth import system_session
from samba.param import LoadParm
from samba.samdb import SamDB

folder, count = sys.argv[1], int(sys.argv[2])
parameters = LoadParm()
parameters.load(f"{folder}/smb.conf")
database = SamDB(url=f"{folder}/private/sam.ldb", session_info=system_session(), lp=parameters)
base = database.domain_dn()
computer = f"CN=PC1,CN=Computers,{base}"
manager = f"CN=msmq,{computer}"
names = [f"CN=q{number:04},{manager}" for number in range(count)]
every = {"objectClass": "group", "groupType": "2", "sAMAccountName": "all", "member": names}
account = {"objectClass": "computer", "sAMAccountName": "PC1$", "userAccountControl": "4096"}
database.transaction_start()
database.add({"dn": computer, **account})
database.add({"dn": manager, "objectClass": "mSMQConfiguration"})
for name in names:
    database.add({"dn": name, "objectClass": "mSMQQueue"})
database.add({"dn": f"CN=all,CN=Users,{base}", **every})
database.transaction_commit()
