import sys
from tests.simulation.life import live
import time
if __name__=="__main__":
    first=int(sys.argv[1]); n=int(sys.argv[2]) if len(sys.argv)>2 else 1
    t=time.process_time(); tot=[0,0,0,0.]; bad=0
    for seed in range(first,first+n):
        life=live(seed,trace=n==1)
        if n==1: print("\n".join(life.trace))
        if life.failures: bad+=1; print(seed,life.failures[:3])
        tot[0]+=life.messages;tot[1]+=life.received;tot[2]+=life.deliveries;tot[3]+=life.seconds
    t=time.process_time()-t
    print(f"{n} seeds {bad} bad, {n/t:.1f} seeds/s {tot} {tot[1]/t:.0f} received/s {tot[2]/t:.0f} pieces/s")
