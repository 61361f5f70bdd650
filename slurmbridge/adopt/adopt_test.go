package adopt

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

func one(user, account, partition string) *job.Job {
	return &job.Job{
		UID: 7, User: user, Account: account, Partition: partition, NumNodes: 1,
		Request: job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"},
	}
}

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	p := &Policy{Percent: 100, OutUsers: []string{"eve"}, OutAccounts: []string{"Out"}, Rules: []Rule{
		{Never: true, Accounts: []string{"Teaching"}}, // Slurm has it in small letters
		{Partitions: []string{"gpu", "long"}, MaxSlowdown: 1.2},
		{Users: []string{"ann"}, MaxSlowdown: 1.5},
	}}
	for _, c := range []struct {
		j    *job.Job
		want float64 // the contract, 0 = it isn't adopted
	}{
		{one("bob", "lab", "gpu"), 1.2},
		{one("bob", "lab", "gpu,long"), 1.2},
		{one("bob", "lab", "gpu,other"), 0},
		{one("ann", "lab", "gpu,other"), 1.5},
		{one("ann", "teaching", "gpu"), 0},
		{one("eve", "lab", "gpu"), 0},
		{one("bob", "out", "gpu"), 0},
	} {
		got := 0.0
		if r := p.Of(c.j); r != nil {
			got = r.MaxSlowdown
		}
		must.Equal(t, got, c.want, "%s of %s in %s", c.j.User, c.j.Account, c.j.Partition)
	}
	for name, change := range map[string]func(*job.Job){
		"shares": func(j *job.Job) { j.Request.Kind = job.Shares }, "two GPUs": func(j *job.Job) { j.Request.Count = 2 },
		"per job": func(j *job.Job) { j.Request.PerNode = false }, "two nodes": func(j *job.Job) { j.NumNodes = 2 },
		"exclusive": func(j *job.Job) { j.Exclusive = job.WholeNodes },
	} {
		j := one("bob", "lab", "gpu")
		if change(j); p.Of(j) != nil {
			t.Errorf("a job of %s is adopted", name)
		}
	}
}

// A share of the users stays the same users as it grows, and is about that share.
func TestPercentOfUsers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, more := &Policy{Percent: rapid.IntRange(0, 99).Draw(t, "percent")}, &Policy{Percent: 100}
		more.Percent = rapid.IntRange(p.Percent, 100).Draw(t, "more")
		if uid := rapid.Uint32().Draw(t, "uid"); p.Chosen(uid) && !more.Chosen(uid) {
			t.Fatalf("user %d is chosen of %d %%, and not of %d %%", uid, p.Percent, more.Percent)
		}
	})
	n := 0
	for uid := range uint32(10000) {
		if (&Policy{Percent: 20}).Chosen(uid) {
			n++
		}
	}
	if n < 1800 || n > 2200 {
		t.Errorf("20 %% are %d of 10,000 users", n)
	}
}

func TestWhatFollowsFromBrokenContracts(t *testing.T) {
	at := time.Unix(1e9, 0)
	if !Bars(at, at.Add(BannedFor-time.Second)) || Bars(at, at.Add(BannedFor)) || Bars(time.Time{}, at) {
		t.Error("an application isn't kept out for a week, or one that was never slower is")
	}
	var s Stops
	if s.Broke("lab", "partition gpu", at) {
		t.Error("one end stops the rule")
	}
	if s.Broke("theory", "partition gpu", at.Add(time.Hour)) || s.Broke("lab", "partition gpu", at.Add(25*time.Hour)) {
		t.Error("of two accounts, or on two days, they stop the rule")
	}
	text, err := json.Marshal(&s) // as a daemon that starts anew reads it
	var read Stops
	if err != nil || json.Unmarshal(text, &read) != nil {
		t.Fatal(err)
	}
	if !read.Broke("lab", "partition gpu", at.Add(26*time.Hour)) ||
		!read.Stopped(&Rule{Partitions: []string{"gpu"}}, at.Add(27*time.Hour)) ||
		read.Stopped(&Rule{Partitions: []string{"long"}}, at) {
		t.Error("two of an account within a day don't stop the rule, or stop another")
	}
	must.Equal(t, read.Count(at.Add(27*time.Hour)), 1, "stopped rules")
	if read.Stopped(&Rule{Partitions: []string{"gpu"}}, at.Add(26*time.Hour+BannedFor)) {
		t.Error("it is stopped for more than a week")
	}
}

func TestParseOptOut(t *testing.T) {
	users, accounts := ParseOptOut("ann # on leave\n\nuser:bob account:lab\n#eve\n")
	if len(users) != 2 || users[1] != "bob" || len(accounts) != 1 || accounts[0] != "lab" {
		t.Errorf("%v %v", users, accounts)
	}
}
