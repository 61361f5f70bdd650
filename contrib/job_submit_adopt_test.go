package contrib

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	slurmjob "github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// oneGPU is a batch job of one GPU on one node, and what else is given of it.
func (s *script) oneGPU(more fields) fields {
	f := s.batch("gres/gpu:1", fields{"script": "#!/bin/sh\nsrun ./md", "partition": "gpu"})
	maps.Copy(f, more)
	return f
}

// withRules writes a fresh gate file with the rules of a policy; nil = there are none.
func withRules(t must.T, s *script, p *adopt.Policy, more string, unbilled ...string) {
	t.Helper()
	if p != nil {
		more += must.Get(p.Lines(func(*adopt.Rule) bool { return false }, unbilled))(t)
	}
	s.gateText(t, "shard", time.Hour, more)
}

func numbered(name string) (uint32, bool) {
	var uid uint32
	_, err := fmt.Sscanf(name, "u%d", &uid)
	return uid, err == nil
}

// The script gates the jobs that the bridge adopts, and no others, by any rules.
func TestScriptAndBridgeAdoptTheSame(t *testing.T) {
	t.Parallel()
	s := load(t)
	value := rapid.SampledFrom([]string{"gpu", "long", "lab", "Lab", "a.b", "x+y"})
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
		withRules(t, s, p, "")
		name := user.Draw(t, "user")
		uid, _ := numbered(name)
		partitions := strings.Join(rapid.SliceOfNDistinct(value, 1, 2, rapid.ID[string]).Draw(t, "partition"), ",")
		account, qos := value.Draw(t, "account"), rapid.SampledFrom([]string{"", "lab", "Long"}).Draw(t, "qos")
		want := p.Of(&slurmjob.Job{
			// As Slurm has them once the script has seen them.
			UID: uid, User: name, Account: strings.ToLower(account), QOS: strings.ToLower(qos), Partition: partitions,
			NumNodes: 1, Request: slurmjob.GPURequest{Kind: slurmjob.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"},
		}) != nil
		_, set := s.ask(t, submit, s.oneGPU(fields{
			"user_id": int(uid), "partition": partitions, "account": account, "qos": qos,
		}))
		if gated := set["dependency"] == "after:77"; gated != want || len(set) > 1 {
			t.Fatalf("gated: %v, adopted: %v; set %v", gated, want, set)
		}
	})
}

// What a job asks for says whether it can be adopted, and what is changed of it.
func TestRequestsThatAreAdopted(t *testing.T) {
	t.Parallel()
	s := load(t)
	all := &adopt.Policy{Active: true, Percent: 100, Rules: []adopt.Rule{{}}}
	gated := map[string]string{"dependency": "after:77"}
	for _, c := range []struct {
		name string
		job  fields
		want map[string]string
	}{
		{"a GPU", nil, gated},
		{"of a type", fields{"tres_per_node": "gres/gpu:titanxp:1"}, gated},
		{"without a number", fields{"tres_per_node": "gres:gpu"}, gated},
		{"tasks on one node", fields{"num_tasks": 4, "min_nodes": 1, "max_nodes": 1}, gated},
		{"after another job", fields{"dependency": "afterok:5"}, map[string]string{"dependency": "afterok:5,after:77"}},
		{"two GPUs", fields{"tres_per_node": "gres/gpu:2"}, nil},
		{"another resource, too", fields{"tres_per_node": "gres/gpu:1,gres/nic:1"}, nil},
		{"tasks on any nodes", fields{"num_tasks": 4}, nil},
		{"two nodes", fields{"min_nodes": 2}, nil},
		{"exclusive", fields{"shared": 0}, nil},
		{"no batch job", fields{"script": nil}, nil},
		{"cores by GPU", fields{"cpus_per_tres": "gres/gpu:4"}, nil},
		{"memory by GPU", fields{"mem_per_tres": "gres/gpu:4"}, nil},
		{"features", fields{"features": "big"}, nil},
		{"opted out", fields{"comment": "app=md,share:no"}, nil},
		{"said of another tool", fields{"comment": "noshare:no"}, gated},
		{"alternatives", fields{"dependency": "afterok:5?after:6"}, nil},
		{"its number of GPUs", fields{"script": "#!/bin/sh\nrun -n $SLURM_GPUS_PER_NODE"}, nil},
		{"how many it has here", fields{"script": "#!/bin/python3\nn = os.environ['SLURM_GPUS_ON_NODE']"}, nil},
		{"GPUs of its own for each task", fields{"script": "#!/bin/sh\n./md ${SLURM_TRES_PER_TASK:-1}"}, nil},
		{"another vendor's numbers", fields{"script": "#!/bin/sh\n./md -d ${ROCR_VISIBLE_DEVICES}"}, nil},
		{"which GPU it has", fields{"script": "#!/bin/sh\n./md -d $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES"}, gated},
		{"a remark on them", fields{"script": "#!/bin/sh\n  # not SLURM_GPUS_ON_NODE\n./md"}, gated},
		{"steps of the job's GPU", fields{"script": "#!/bin/sh\nsrun --gres=none ./md --gpus 1"}, gated},
		{"steps with GPUs somewhere", fields{"script": "#!/bin/sh\nif x; then srun -G 1 ./md; fi"}, nil},
		{"steps with GPUs of their own", fields{"script": "#!/bin/sh\nsrun --gres=gpu:1 ./md"}, nil},
		{"a deadline", fields{"script": "#!/bin/sh\n#SBATCH --time=5 --deadline=now+1hour\nsrun ./md"}, nil},
		{"the script's own options", fields{"script": "#!/bin/sh\n#SBATCH --gres=gpu:1\nsrun ./md"}, gated},
		{
			"per job",
			fields{"tres_per_node": nil, "tres_per_job": "gres/gpu:1"},
			map[string]string{"dependency": "after:77", "tres_per_node": "gres/gpu:1", "tres_per_job": ""},
		},
		{
			"per job, several tasks",
			fields{"tres_per_node": nil, "tres_per_job": "gres/gpu:1", "num_tasks": 2, "min_nodes": 1, "max_nodes": 1},
			nil,
		},
		{
			"per task",
			fields{"tres_per_node": nil, "tres_per_task": "cpu=2,gres/gpu=1", "num_tasks": 1},
			map[string]string{
				"dependency": "after:77", "tres_per_node": "gres/gpu:1", "tres_per_task": "cpu=2",
				"tres_bind": "",
			},
		},
		{"cores per task", fields{"tres_per_task": "cpu=2"}, gated},
	} {
		for _, p := range []*adopt.Policy{all, nil} {
			withRules(t, s, p, "")
			rc, set := s.ask(t, submit, s.oneGPU(c.job))
			must.Equal(t, rc, lua.LValue(success), c.name)
			must.Equal(t, set, map[bool]map[string]string{true: c.want}[p != nil], "%s, rules %v", c.name, p != nil)
			must.Equal(t, s.said, nil, c.name)
		}
	}
	for partition, want := range map[string]int{"gpu": 0, "other": 1} {
		withRules(t, s, all, "", "long", partition)
		_, set := s.ask(t, submit, s.oneGPU(nil))
		must.Equal(t, len(set), want, "no charge in %s", partition)
	}
	for _, more := range []string{"cpus=gpu:4\n", "mem=*:1000\n", "leave=gpu\n", "only=other\n"} {
		withRules(t, s, all, more)
		_, set := s.ask(t, submit, s.oneGPU(nil))
		must.Equal(t, set, nil, more)
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
