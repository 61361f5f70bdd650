package contrib

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	slurmjob "github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// oneGPU is a batch job of one GPU on one node.
func oneGPU(s *script) map[string]lua.LValue {
	return map[string]lua.LValue{
		"tres_per_node": lua.LString("gres/gpu:1"), "script": lua.LString("#!/bin/sh\nsrun ./md"),
		"user_id":   lua.LNumber(userID),
		"partition": lua.LString("gpu"), "argc": lua.LNumber(1), "argv": s.NewTable(), "environment": s.NewTable(),
	}
}

// withRules writes a fresh gate file with the rules of a policy.
func withRules(t rapid.TB, file string, p *adopt.Policy, more string, unbilled ...string) {
	lines, err := p.Lines(func(*adopt.Rule) bool { return false }, unbilled)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("job=77\nexpires=%d\ngres=shard\nunits=100\n%s%s", time.Now().Add(time.Hour).Unix(), more, lines)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func numbered(name string) (uint32, bool) {
	var uid uint32
	_, err := fmt.Sscanf(name, "u%d", &uid)
	return uid, err == nil
}

// The script gates the jobs that the bridge adopts, and no others, by any rules.
func TestScriptAndBridgeAdoptTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	s := load(t, gate, filepath.Join(dir, "wake"))
	defer s.Close()
	value := rapid.SampledFrom([]string{"gpu", "long", "lab", "a.b", "x+y"})
	list := rapid.SliceOfNDistinct(value, 0, 2, rapid.ID[string])
	user := rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("u%d", rapid.Uint32Range(1, 300).Draw(t, "uid")) })
	rapid.Check(t, func(t *rapid.T) {
		p := &adopt.Policy{Active: true, Percent: rapid.IntRange(1, 100).Draw(t, "percent"), UID: numbered}
		for range rapid.IntRange(1, 4).Draw(t, "rules") {
			p.Rules = append(p.Rules, adopt.Rule{
				Never: rapid.Bool().Draw(t, "never"), Partitions: list.Draw(t, "partitions"), Accounts: list.Draw(t, "accounts"),
				QOS:   list.Draw(t, "QOS"),
				Users: rapid.SliceOfN(user, 0, 2).Draw(t, "users"),
			})
		}
		p.OutAccounts = rapid.SliceOfN(value, 0, 1).Draw(t, "accounts that are out")
		p.OutUsers = rapid.SliceOfN(user, 0, 1).Draw(t, "users that are out")
		withRules(t, gate, p, "")
		name := user.Draw(t, "user")
		uid, _ := numbered(name)
		partitions := strings.Join(rapid.SliceOfNDistinct(value, 1, 2, rapid.ID[string]).Draw(t, "partition"), ",")
		account, qos := value.Draw(t, "account"), rapid.SampledFrom([]string{"", "lab", "long"}).Draw(t, "qos")
		j := oneGPU(s)
		j["user_id"], j["partition"] = lua.LNumber(uid), lua.LString(partitions)
		j["account"], j["qos"] = lua.LString(account), lua.LString(qos)
		want := p.Of(&slurmjob.Job{
			UID: uid, User: name, Account: account, QOS: qos, Partition: partitions, NumNodes: 1,
			Request: slurmjob.GPURequest{Kind: slurmjob.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"},
		}) != nil
		_, set, err := s.call("slurm_job_submit", j, "")
		if err != nil || len(s.logged) > 0 {
			t.Fatal(err, s.logged)
		}
		if gated := set["dependency"] == "after:77"; gated != want || len(set) > 1 {
			t.Fatalf("gated: %v, adopted: %v; set %v", gated, want, set)
		}
	})
}

// What a job asks for says whether it can be adopted, and what is changed of it.
func TestRequestsThatAreAdopted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	s := load(t, gate, filepath.Join(dir, "wake"))
	defer s.Close()
	all := &adopt.Policy{Active: true, Percent: 100, Rules: []adopt.Rule{{}}}
	str, num := func(v string) lua.LValue { return lua.LString(v) }, func(v float64) lua.LValue { return lua.LNumber(v) }
	type fields = map[string]lua.LValue
	gated := map[string]string{"dependency": "after:77"}
	for _, c := range []struct {
		name string
		job  fields
		want map[string]string
	}{
		{"a GPU", nil, gated},
		{"of a type", fields{"tres_per_node": str("gres/gpu:titanxp:1")}, gated},
		{"without a number", fields{"tres_per_node": str("gres:gpu")}, gated},
		{"tasks on one node", fields{"num_tasks": num(4), "min_nodes": num(1), "max_nodes": num(1)}, gated},
		{"after another job", fields{"dependency": str("afterok:5")}, map[string]string{"dependency": "afterok:5,after:77"}},
		{"two GPUs", fields{"tres_per_node": str("gres/gpu:2")}, nil},
		{"another resource, too", fields{"tres_per_node": str("gres/gpu:1,gres/nic:1")}, nil},
		{"tasks on any nodes", fields{"num_tasks": num(4)}, nil},
		{"two nodes", fields{"min_nodes": num(2)}, nil},
		{"exclusive", fields{"shared": num(0)}, nil},
		{"no batch job", fields{"script": lua.LNil}, nil},
		{"cores by GPU", fields{"cpus_per_tres": str("gres/gpu:4")}, nil},
		{"memory by GPU", fields{"mem_per_tres": str("gres/gpu:4")}, nil},
		{"features", fields{"features": str("big")}, nil},
		{"opted out", fields{"comment": str("app=md,share:no")}, nil},
		{"said of another tool", fields{"comment": str("noshare:no")}, gated},
		{"alternatives", fields{"dependency": str("afterok:5?after:6")}, nil},
		{"its number of GPUs", fields{"script": str("#!/bin/sh\nrun -n $SLURM_GPUS_PER_NODE")}, nil},
		{"how many it has here", fields{"script": str("#!/bin/python3\nn = os.environ['SLURM_GPUS_ON_NODE']")}, nil},
		{"GPUs of its own for each task", fields{"script": str("#!/bin/sh\n./md ${SLURM_TRES_PER_TASK:-1}")}, nil},
		{"another vendor's numbers", fields{"script": str("#!/bin/sh\n./md -d ${ROCR_VISIBLE_DEVICES}")}, nil},
		{"which GPU it has", fields{"script": str("#!/bin/sh\n./md -d $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES")}, gated},
		{"a remark on them", fields{"script": str("#!/bin/sh\n  # not SLURM_GPUS_ON_NODE\n./md")}, gated},
		{"steps of the job's GPU", fields{"script": str("#!/bin/sh\nsrun --gres=none ./md --gpus 1")}, gated},
		{"steps with GPUs somewhere", fields{"script": str("#!/bin/sh\nif x; then srun -G 1 ./md; fi")}, nil},
		{"steps with GPUs of their own", fields{"script": str("#!/bin/sh\nsrun --gres=gpu:1 ./md")}, nil},
		{"a deadline", fields{"script": str("#!/bin/sh\n#SBATCH --time=5 --deadline=now+1hour\nsrun ./md")}, nil},
		{"the script's own options", fields{"script": str("#!/bin/sh\n#SBATCH --gres=gpu:1\nsrun ./md")}, gated},
		{
			"per job",
			fields{"tres_per_node": lua.LNil, "tres_per_job": str("gres/gpu:1")},
			map[string]string{"dependency": "after:77", "tres_per_node": "gres/gpu:1", "tres_per_job": ""},
		},
		{
			"per job, several tasks",
			fields{
				"tres_per_node": lua.LNil, "tres_per_job": str("gres/gpu:1"), "num_tasks": num(2), "min_nodes": num(1),
				"max_nodes": num(1),
			},
			nil,
		},
		{
			"per task",
			fields{"tres_per_node": lua.LNil, "tres_per_task": str("cpu=2,gres/gpu=1"), "num_tasks": num(1)},
			map[string]string{
				"dependency": "after:77", "tres_per_node": "gres/gpu:1", "tres_per_task": "cpu=2",
				"tres_bind": "",
			},
		},
		{"cores per task", fields{"tres_per_task": str("cpu=2")}, gated},
	} {
		for _, rules := range []bool{true, false} {
			p := all
			if !rules {
				p = nil
			}
			withRules(t, gate, p, "")
			j := oneGPU(s)
			for k, v := range c.job {
				j[k] = v
			}
			rc, set, err := s.call("slurm_job_submit", j, "")
			want := c.want
			if !rules {
				want = nil
			}
			if err != nil || rc != success || fmt.Sprint(set) != fmt.Sprint(want) && len(set)+len(want) > 0 ||
				len(s.said)+len(s.logged) > 0 {
				t.Errorf("%s, rules %v: set %v, want %v (%v %q %q)", c.name, rules, set, want, err, s.said, s.logged)
			}
		}
	}
	charged := *all
	charged.Charge = true
	for partition, want := range map[string]int{"gpu": 0, "other": 1} {
		withRules(t, gate, &charged, "", "long", partition)
		if _, set, err := s.call("slurm_job_submit", oneGPU(s), ""); err != nil || len(set) != want {
			t.Errorf("no charge in %s: %v %v", partition, set, err)
		}
	}
	for _, more := range []string{"cpus=gpu:4\n", "mem=*:1000\n", "leave=gpu\n", "only=other\n"} {
		withRules(t, gate, all, more)
		if _, set, err := s.call("slurm_job_submit", oneGPU(s), ""); err != nil || len(set) > 0 {
			t.Errorf("%s: %v %v", more, set, err)
		}
	}
}

// Rules that the script couldn't read all of are none.
func TestTooManyRules(t *testing.T) {
	p := &adopt.Policy{
		Active: true, Percent: 100,
		Rules: []adopt.Rule{{Accounts: slices.Repeat([]string{strings.Repeat("x", 100)}, 600)}},
	}
	if lines, err := p.Lines(func(*adopt.Rule) bool { return false }, nil); err == nil || lines != "" {
		t.Errorf("%d bytes, %v", len(lines), err)
	}
}
