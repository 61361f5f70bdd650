package text

import (
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// gateRow is the gate as 22.05 and later print it.
func gateRow(change func(plain *[numPlain]string, free *[numFree]string)) string {
	plain := plainRow("7")
	plain[pUID], plain[pUser], plain[pLimit], plain[pRequeue] = "64030", "slurm", "1:00", "0"
	plain[pEligible], plain[pDeadline], plain[pCPUs], plain[pTRES] = "1700000060", "1700000118", "1", "cpu=1,mem=1M,node=1,billing=1"
	plain[pExclusive] = "OK"
	var free [numFree]string
	for i := range free {
		free[i] = "N/A"
	}
	free[fDependency], free[fReason], free[fComment] = "", "BeginTime", job.GateName
	change(&plain, &free)
	return row("~N", "7", plain, free)
}

// A made-up release in which one word after the other has changed its meaning: each is noticed,
// by its name.
func TestMadeUpRelease(t *testing.T) {
	gate := func(form *Form, change func(*[numPlain]string, *[numFree]string)) []job.Misread {
		t.Helper()
		p := QueueParser{Form: form, Ours: func(uid uint32) bool { return uid == 64030 }}
		_, gates, err := p.Parse(nil, []byte(gateRow(change)), "~N")
		if err != nil || len(gates) != 1 {
			t.Fatalf("%d gates, %v", len(gates), err)
		}
		return gates[0].Misread
	}
	if bad := gate(FormOf("22.05.8"), func(*[numPlain]string, *[numFree]string) {}); len(bad) > 0 {
		t.Errorf("as it is: %v", bad)
	}
	for field, change := range map[string]func(*[numPlain]string, *[numFree]string){
		"arraytaskid":   func(p *[numPlain]string, _ *[numFree]string) { p[pTask] = "0" },
		"hetjobid":      func(p *[numPlain]string, _ *[numFree]string) { p[pHet] = "7" },
		"username":      func(p *[numPlain]string, _ *[numFree]string) { p[pUser] = "" },
		"partition":     func(p *[numPlain]string, _ *[numFree]string) { p[pPartition] = "(null)" },
		"submittime":    func(p *[numPlain]string, _ *[numFree]string) { p[pSubmit] = "2023-11-14T22:13" },
		"eligibletime":  func(p *[numPlain]string, _ *[numFree]string) { p[pEligible] = "+60" },
		"timelimit":     func(p *[numPlain]string, _ *[numFree]string) { p[pLimit] = "60" },
		"deadline":      func(p *[numPlain]string, _ *[numFree]string) { p[pDeadline] = "118" },
		"numnodes":      func(p *[numPlain]string, _ *[numFree]string) { p[pNodes], p[pTRES] = "0", "cpu=1,mem=1M" },
		"numcpus":       func(p *[numPlain]string, _ *[numFree]string) { p[pCPUs] = "none" },
		"requeue":       func(p *[numPlain]string, _ *[numFree]string) { p[pRequeue] = "1" },
		"oversubscribe": func(p *[numPlain]string, _ *[numFree]string) { p[pExclusive] = "NO" },
		"nodelist":      func(p *[numPlain]string, _ *[numFree]string) { p[pNodeList] = "n1" },
		"tres-per-node": func(_ *[numPlain]string, f *[numFree]string) { f[fPerNode] = "gres/none" },
		"tres-per-job":  func(_ *[numPlain]string, f *[numFree]string) { f[fPerJob] = "-" },
	} {
		if bad := gate(FormOf("22.05.8"), change); len(bad) == 0 || bad[0].Field != "squeue's "+field {
			t.Errorf("%s: %v", field, bad)
		}
	}
	// Columns in another order.
	if bad := gate(FormOf("22.05.8"), func(p *[numPlain]string, _ *[numFree]string) {
		p[pSubmit], p[pEligible], p[pStart], p[pLimit] = p[pStart], p[pSubmit], p[pLimit], p[pEligible]
	}); len(bad) < 2 {
		t.Errorf("columns in another order: %v", bad)
	}
}

func TestMisreadGate(t *testing.T) {
	said := "JobId=7 JobName=slurmbridge-gate\n   JobState=%s Reason=BeginTime Dependency=%s\n   Requeue=0 TimeLimit=%s TimeMin=N/A\n   Comment=slurmbridge-gate \n"
	for text, want := range map[string]int{
		fmt.Sprintf(said, "PENDING", "(null)", "00:01:00"):         0,
		fmt.Sprintf(said, "QUEUED", "(null)", "00:01:00"):          1,
		fmt.Sprintf(said, "PENDING", "none", "1"):                  2,
		fmt.Sprintf(said, "PENDING", "(null)", "\xff\xfe00:01:00"): 0,
		`{"jobs": []}`: 5, "": 5,
	} {
		if bad := MisreadGate([]byte(text)); len(bad) != want || GateEnded([]byte(text)) {
			t.Errorf("%q: %v", text, bad)
		}
	}
	for _, state := range []string{"CANCELLED", "CANCELLED by 0", "DEADLINE"} {
		if !GateEnded([]byte(fmt.Sprintf(said, state, "(null)", "00:01:00"))) {
			t.Errorf("a gate that is %s ended between two commands: it tells nothing of Slurm's words", state)
		}
	}
}
