package contrib

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// script is the job_submit script in a Lua of its own (5.1, as in Slurm on
// Debian), with a stand-in for what slurmctld gives it.
type script struct {
	*lua.LState
	gate, wake string // its files
	parts      lua.LValue
	said       []string // to users
	logged     []string
}

// load loads the script, with files that aren't there yet.
func load(t *testing.T) *script {
	t.Helper()
	dir := t.TempDir()
	s := &script{LState: lua.NewState(), gate: filepath.Join(dir, "gate"), wake: filepath.Join(dir, "wake"), parts: lua.LNil}
	t.Cleanup(s.Close)
	keep := func(to *[]string) lua.LGFunction {
		return func(l *lua.LState) int {
			*to = append(*to, strings.Replace(l.CheckString(1), "%s", l.OptString(2, ""), 1))
			return 0
		}
	}
	s.SetGlobal("slurm", s.table(map[string]any{
		"SUCCESS": 0, "ERROR": -1, "log_user": s.NewFunction(keep(&s.said)), "log_error": s.NewFunction(keep(&s.logged)),
	}))
	must.OK(t, s.DoString(string(must.Get(os.ReadFile("job_submit.lua"))(t))))
	m, ok := s.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatal("the script returns no table")
	}
	s.SetField(s.GetField(m, "conf"), "gate", lua.LString(s.gate))
	s.SetField(s.GetField(m, "conf"), "wake", lua.LString(s.wake))
	return s
}

// value is a value in Lua: of text, a number, words, a table or a function.
func (s *script) value(v any) lua.LValue {
	switch v := v.(type) {
	case string:
		return lua.LString(v)
	case int:
		return lua.LNumber(v)
	case []string:
		words := s.NewTable()
		for i, w := range v {
			words.RawSetInt(i+1, lua.LString(w))
		}
		return words
	case lua.LValue:
		return v
	}
	return lua.LNil
}

func (s *script) table(of map[string]any) *lua.LTable {
	t := s.NewTable()
	for k, v := range of {
		s.SetField(t, k, s.value(v))
	}
	return t
}

// gateText writes the gate file: one of a cluster of such shares that is fresh for d, with more lines.
func (s *script) gateText(t must.T, gres string, d time.Duration, more string) {
	t.Helper()
	text := fmt.Sprintf("job=77\nexpires=%d\ngres=%s\nunits=100\n%s", time.Now().Add(d).Unix(), gres, more)
	must.OK(t, os.WriteFile(s.gate, []byte(text), 0o600))
}

// fields are a job's, as Slurm hands them to the script.
type fields map[string]any

// batch is a batch job without arguments that makes a request, and what else is given of it.
func (s *script) batch(request string, more fields) fields {
	f := fields{
		"tres_per_node": request, "script": "#!/bin/sh", "argc": 1, "argv": s.NewTable(), "environment": s.NewTable(),
		"user_id": userID,
	}
	maps.Copy(f, more)
	return f
}

// userID is who submits and changes jobs, bridgeID the bridge.
const userID, bridgeID = 1000, 64030

const submit, modify = "slurm_job_submit", "slurm_job_modify"

// ask hands a job to slurm_job_submit or slurm_job_modify, and returns what it returned and what it set; what it says
// is in said. It ends the test if the script fails.
func (s *script) ask(t must.T, function string, job fields) (rc lua.LValue, set map[string]string) {
	t.Helper()
	rc, set, err := s.call(function, job, "")
	if err != nil || len(s.logged) > 0 {
		t.Fatal(err, s.logged, job)
	}
	return rc, set
}

// call is ask of a job that has a field which can't be read, where the script may fail.
func (s *script) call(function string, job fields, fails string) (lua.LValue, map[string]string, error) {
	s.said, s.logged = nil, nil
	set := map[string]string{}
	desc := s.NewTable()
	s.SetMetatable(desc, s.table(map[string]any{
		"__index": s.NewFunction(func(l *lua.LState) int {
			name := l.CheckString(2)
			if name == fails {
				l.RaiseError("no %s here", name)
			}
			l.Push(s.value(job[name]))
			return 1
		}),
		"__newindex": s.NewFunction(func(l *lua.LState) int {
			set[l.CheckString(2)] = l.CheckString(3)
			return 0
		}),
	}))
	args := []lua.LValue{desc, s.parts, lua.LNumber(userID)}
	if function == modify {
		rec := s.NewTable()
		if was, is := job["rec"].(fields); is {
			rec = s.table(was)
		}
		args = []lua.LValue{desc, rec, s.parts, lua.LNumber(userID)}
	}
	err := s.CallByParam(lua.P{Fn: s.GetGlobal(function), NRet: 1, Protect: true}, args...)
	if err != nil {
		return nil, set, err
	}
	rc := s.Get(-1)
	s.Pop(1)
	return rc, set, nil
}

var (
	success = lua.LNumber(0)
	refused = lua.LNumber(-1)
)

// ofShares are partitions of a cluster: whole hands out whole nodes, and in gpu only shares are handed out (onlyShares).
func ofShares(s *script) {
	share := func(max int) lua.LValue { return s.table(map[string]any{"max_share": max, "flag_default": 0}) }
	s.parts = s.table(map[string]any{"gpu": share(1), "other": share(1), "whole": share(0)})
}

const onlyShares = "uid=64030\nshares=gpu\n"

// A job that gets whole nodes asks for a GPU, of which Slurm gives it all of a node's, and waits for no gate: with shares
// it would never start. Of a list of both kinds of partitions it keeps those where it may share.
func TestJobsOfWholeNodes(t *testing.T) {
	t.Parallel()
	s := load(t)
	ofShares(s)
	s.gateText(t, "mps", time.Hour, onlyShares)
	for _, c := range []struct {
		name, asks, partition string
		exclusive             bool
		gets, stays           string // the request, and the partitions; "" = as they came
		gated                 bool
	}{
		{"exclusive", "gres:gpu:shared", "gpu", true, "gres:gpu:1", "", false},
		{"in a partition of whole nodes", "gres:gpu:shared", "whole", false, "gres:gpu:1", "", false},
		{"in a list", "gres:gpu:shared", "whole,gpu,other", false, "gres:mps:100", "gpu,other", true},
		{"not at all", "gres:gpu:shared", "gpu", false, "gres:mps:100", "", true},
		{"unchanged and exclusive", "gres:gpu:1", "gpu", true, "", "", false},
		{"unchanged, several GPUs", "gres:gpu:4", "gpu", true, "", "", false},
		{"unchanged, of whole nodes", "gres:gpu:1", "whole", false, "", "", false},
		{"unchanged, in a list", "gres:gpu:1", "gpu,whole", false, "gres:mps:100", "gpu", false},
		{"a part by hand", "gres:mps:30", "whole", false, "", "", false},
	} {
		job := s.batch(c.asks, fields{"partition": c.partition})
		if c.exclusive {
			job["shared"] = 0
		}
		rc, set := s.ask(t, submit, job)
		must.Equal(t, rc, lua.LValue(success), c.name)
		must.Equal(t, [2]string{set["tres_per_node"], set["partition"]}, [2]string{c.gets, c.stays}, c.name)
		must.Equal(t, set["dependency"] != "", c.gated, c.name)
	}
	// A job that holds shares can't be moved there: Slurm 22.05 gives it no GPU in their place.
	for partition, want := range map[string]string{"whole": "refused", "whole,gpu": "gpu", "other": ""} {
		rc, set := s.ask(t, modify, fields{"partition": partition, "rec": fields{"tres_per_node": "gres:mps:100"}})
		must.Equal(t, rc == lua.LValue(refused), want == "refused", partition)
		must.Equal(t, set["partition"], strings.TrimPrefix(want, "refused"), partition)
	}
	rc, _ := s.ask(t, modify, fields{"time_limit": 5, "rec": fields{"tres_per_node": "gres:mps:100", "partition": "whole"}})
	must.Equal(t, rc, lua.LValue(success), "another change of a job that is there already")
}

// A request for a GPU that becomes shares takes along what belongs to it: the GPU's type where there are several, cores
// and memory by the GPU, and what sbatch handed on to each srun. What can't be had is refused with a sentence.
func TestWhatGoesWithARequest(t *testing.T) {
	t.Parallel()
	s := load(t)
	ofShares(s)
	s.gateText(t, "mps", time.Hour, onlyShares+"type=v100\ntype=titanxp\ncpus=gpu:2\nmem=gpu:500\n")
	env := s.table(map[string]any{
		"SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1", "SLURM_TRES_PER_TASK": "cpu=2", "SLURM_GRES": "gpu:1", "HOME": "/h",
	})
	rc, set := s.ask(t, submit, s.batch("", fields{"tres_per_job": "gres:gpu:1", "partition": "gpu", "environment": env}))
	must.Equal(t, rc, lua.LValue(success))
	must.Equal(t, set, map[string]string{
		"tres_per_node": "gres:mps:100", "tres_per_job": "", "min_cpus": "2", "min_mem_per_node": "500",
	})
	left := map[string]string{}
	env.ForEach(func(k, v lua.LValue) { left[k.String()] = v.String() })
	must.Equal(t, left, map[string]string{
		"SLURM_GPUS": "", "SLURM_GPUS_PER_NODE": "", "SLURM_TRES_PER_TASK": "cpu=2", "SLURM_GRES": "", "HOME": "/h",
	})

	env = s.NewTable()
	_, set = s.ask(t, submit, s.batch("gres:gpu:v100:1", fields{"partition": "gpu", "environment": env}))
	must.Equal(t, set["tres_per_node"], "gres:mps:v100:100")
	must.Equal(t, str(s.GetField(env, "SLURM_GRES")), "mps:100", "what its steps ask for")
	_, _ = s.ask(t, submit, s.batch("", fields{"environment": env}))
	must.Equal(t, str(s.GetField(env, "SLURM_GRES")), "", "in a job that such a job submits")

	s.gateText(t, "shard", time.Hour, onlyShares+"model=2g.20gb\n")
	_, set = s.ask(t, submit, s.batch("gres:gpu:shared", fields{"environment": env, "comment": "share:model=2g.20gb"}))
	must.Equal(t, set["tres_per_node"], "gres:shard:2g.20gb:100")
	must.Equal(t, str(s.GetField(env, "SLURM_GRES")), "shard:1", "what its steps ask for, however many shares it will have")
	_, _ = s.ask(t, submit, s.batch("", fields{"environment": env}))
	must.Equal(t, str(s.GetField(env, "SLURM_GRES")), "", "in a job that such a job submits")

	s.gateText(t, "mps", time.Hour, onlyShares)
	for why, job := range map[string]fields{
		"--cpus-per-gpu can't":              {"cpus_per_tres": "gres:gpu:2"},
		"--mem-per-gpu can't":               {"mem_per_tres": "gres:gpu:200"},
		"--gpu-freq can't":                  {"tres_freq": "gpu:high"},
		"--ntasks-per-gpu can't":            {"ntasks_per_tres": 1},
		"the script's srun --gres=gpu:1 fi": {"script": "#!/bin/sh\nsrun --gres=gpu:1 true"},
		"the script's srun --gpus=1 finds":  {"script": "#!/bin/sh\nsrun --gpus=1 true"},
	} {
		job["partition"] = "gpu"
		rc, set := s.ask(t, submit, s.batch("gres:gpu:1", job))
		said := strings.Join(s.said, "; ")
		if rc != success && len(set) == 0 && strings.Contains(said, "in partition gpu GPUs are shared, and "+why) {
			continue
		}
		t.Errorf("%v: %v, set %v, said %q", job, rc, set, said)
	}
	rc, set = s.ask(t, submit, s.batch("gres:gpu:1", fields{"partition": "gpu", "script": "[ x ] && srun --gpus=1 true"}))
	must.Equal(t, [2]string{rc.String(), set["tres_per_node"]}, [2]string{"0", "gres:mps:100"}, "it may not come to that")
	must.Equal(t, strings.Contains(strings.Join(s.said, ""), "where the script comes to srun --gpus=1"), true, s.said)
}

// A site's script that loads this one late keeps its functions; what it hasn't defined is ours.
func TestASitesFunctionsStay(t *testing.T) {
	t.Parallel()
	s := load(t)
	ours := s.GetGlobal(modify)
	must.Equal(t, ours.Type(), lua.LTFunction, "without a site's own")
	own := s.NewFunction(func(*lua.LState) int { return 0 })
	s.SetGlobal(submit, own)
	s.SetGlobal(modify, lua.LNil)
	must.OK(t, s.DoString(string(must.Get(os.ReadFile("job_submit.lua"))(t))))
	must.Equal(t, s.GetGlobal(submit) == lua.LValue(own), true, "the site's is replaced")
	must.Equal(t, s.GetGlobal(modify).Type(), lua.LTFunction)
}

// A batch job that asks for a part of a GPU by hand is noted as one; no other job is, whoever submits it.
func TestPartsByHandAreNoted(t *testing.T) {
	t.Parallel()
	s := load(t)
	for request, hand := range map[string]bool{
		"gres:mps:10": true, "gres/shard:t4:30": true, "gres:gpu:1,gres:mps:50": true, "gres:mps:100": false,
		"gres:mps:200": false, "gres:gpu:shared": false, "gres:gpu:1": false, "": false,
	} {
		for _, inherited := range []string{"", "1"} {
			env := s.table(map[string]any{"SLURMBRIDGE_HAND": inherited})
			rc, _ := s.ask(t, submit, s.batch(request, fields{"environment": env}))
			must.Equal(t, rc, lua.LValue(success), request)
			must.Equal(t, lua.LVAsString(s.GetField(env, "SLURMBRIDGE_HAND")) != "", hand, "%q, inherited %q", request, inherited)
		}
	}
	rc, _ := s.ask(t, submit, fields{"tres_per_node": "gres:mps:10"}) // srun, which sends no environment
	must.Equal(t, rc, lua.LValue(success))
}

// The gate's partition leaves a list of several, whoever made it, and nothing else does.
func TestTheGatesPartitionLeavesLists(t *testing.T) {
	t.Parallel()
	s := load(t)
	for _, c := range []struct{ file, list, want string }{
		{"", "cpu,slurmbridge,gpu", "cpu,gpu"},
		{"", "slurmbridge,gpu", "gpu"},
		{"", "slurmbridge", ""},             // the gate itself
		{"", "slurmbridge,slurmbridge", ""}, // Slurm refuses it
		{"", "cpu,slurmbridge2", ""},
		{"", "cpu,gpu", ""},
		{"partition=gates\n", "cpu,slurmbridge,gates", "cpu,slurmbridge"},
	} {
		must.OK(t, os.WriteFile(s.gate, []byte(c.file), 0o600))
		for _, request := range []string{"", "gres/gpu:1", "gres/gpu:shared"} {
			rc, set := s.ask(t, submit, fields{"partition": c.list, "tres_per_node": request})
			must.Equal(t, rc, lua.LValue(success), c.list)
			must.Equal(t, set["partition"], c.want, "%q, %s with %q", c.file, c.list, request)
		}
	}
}

// The script refuses a shared job whose wish the bridge doesn't understand, and adopts none that wants to share with
// nobody, however its owner spells that.
func TestScriptAndBridgeReadTheSameWishes(t *testing.T) {
	t.Parallel()
	s := load(t)
	s.gateText(t, "shard", time.Hour, "adopt=partition:gpu \npercent=100\n")
	word := rapid.OneOf(
		rapid.SampledFrom([]string{
			"share:no", "Share:No", "share=no", "shared:no", "SHARED=off", "share:never", "share:off", "sharing:no", "no",
			"share:", "share:yes", "share=/data", "shares=3", "shared:all", "share:max-slowdown=1.15", "share:Max-Slowdown=2.",
			"share:max-slowdown=banana", "share:max-slowdown=0.5", "share:max-slowdown=0x10", "share:memory=8G",
			"share:memory=8", "share:memory=0G", "share:model=2g.20gb", "share:model=a:b", "share:with=array", "share:with",
			"share:retry=1", "share:REPORT", "share:no-mail", "share:interactive", "share:interactive=4G", "app=lmp",
		}),
		rapid.StringMatching(`[Ss]hared?[:=][a-z-]{0,9}(=[0-9.a-zG]{0,5})?`),
	)
	rapid.Check(t, func(t *rapid.T) {
		between := rapid.SampledFrom([]string{",", " ", ";"}).Draw(t, "between")
		comment := strings.Join(rapid.SliceOfN(word, 0, 3).Draw(t, "words"), between)
		terms := slurmjob.ParseTerms(comment)
		rc, _ := s.ask(t, submit, s.batch("gres/gpu:shared", fields{"comment": comment}))
		if (rc == refused) != (len(terms.Ignored) > 0) {
			t.Fatalf("%q: %v; the bridge doesn't understand %q", comment, s.said, terms.Ignored)
		}
		_, set := s.ask(t, submit, s.oneGPU(fields{"partition": "gpu", "comment": comment}))
		if (set["dependency"] == "after:77") == terms.NoShare {
			t.Fatalf("%q: adopted: %v; the bridge reads %+v", comment, set, terms)
		}
	})
}

// TestWhateverASlurmctldSays: no request and no gate file makes the script raise an error; a job that doesn't say
// gpu:shared is not touched; one that does is refused with a sentence, or asks for a whole GPU's shares and no
// gpu:shared any more; what else it asked for stays.
func TestWhateverASlurmctldSays(t *testing.T) {
	t.Parallel()
	s := load(t)
	item := rapid.OneOf(
		rapid.SampledFrom([]string{
			"gres:gpu:shared", "gres/gpu:shared", "gpu:shared", "gres/gpu:shared:1", "gres:gpu:shared=1", "gres/gpu:shared:2",
			"gres:gpu", "gres/gpu:2",
			"gres/gpu:titanxp:1", "gres:mps:50", "gres/shard:3", "gres/tape:1", "gres:nic:shared", "gpu", "", "gres/gpu:sharedx",
			"gres/gpu:shared:1K",
			"gres:mps", "gres/mps:100", "gres:mps:250", "gres/mps:titanxp:30", "mps=7", "gres:mps:1K", "gres/shard:100",
		}),
		rapid.StringMatching(`[a-z:/=,? 0-9]{0,12}`),
		rapid.String(),
	)
	field := rapid.Custom(func(t *rapid.T) lua.LValue {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0, 1:
			return lua.LNil
		case 2:
			return lua.LString("")
		case 3:
			return rapid.SampledFrom([]lua.LValue{lua.LNumber(1), lua.LTrue, lua.LNumber(4294967294)}).Draw(t, "odd")
		}
		return lua.LString(strings.Join(rapid.SliceOfN(item, 1, 3).Draw(t, "items"), ","))
	})
	argument := rapid.OneOf(rapid.StringMatching(`(--?[a-z_-]{1,9}[= ]?)?[0-9.eExk-]{0,12}`),
		rapid.StringMatching(`([A-Z_]{1,30}=[a-z0-9]{0,9},?){0,3}`), rapid.String())
	size := rapid.SampledFrom([]lua.LValue{
		lua.LNil, lua.LNumber(1), lua.LNumber(2), lua.LNumber(65534),
		lua.LNumber(4294967294), lua.LString("x"),
	})
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.OneOf(
			rapid.Just(fmt.Sprintf("job=77\nexpires=%d\ngres=shard\nunits=100\n", time.Now().Add(time.Hour).Unix())),
			rapid.Just(fmt.Sprintf("job=77\nexpires=%d\ngres=mps\nunits=100\n", time.Now().Add(-time.Hour).Unix())),
			rapid.Just(fmt.Sprintf("job=77\nexpires=%d\ngres=mps\nunits=100\nuid=%d\n", time.Now().Add(time.Hour).Unix(),
				bridgeID)),
			rapid.SampledFrom([]string{
				"\n", "job=\nexpires=99999999999\n", "job=1;rm -rf\nexpires=zzz\n\x00\xff", "job=0\nexpires=99999999999\n",
				"job=5\n", "job=5\nexpires=-1\n", "job=77\nexpires=99999999999\ngres=mig\nunits=zero\n",
			}),
			rapid.String(),
		).Draw(t, "gate")
		must.OK(t, os.WriteFile(s.gate, []byte(file), 0o600))
		job := fields{}
		asked, named := false, false
		police := strings.Contains(file, "uid=")
		for _, f := range []string{"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"} {
			job[f] = field.Draw(t, f)
			for one := range strings.SplitSeq(str(job[f]), ",") {
				named = named || shared.MatchString(one)
				asked = asked || named || police && isPart(one)
			}
		}
		for _, f := range []string{"min_nodes", "num_tasks", "ntasks_per_node", "het_job_offset", "argc"} {
			job[f] = size.Draw(t, f)
		}
		job["dependency"] = rapid.SampledFrom([]lua.LValue{
			lua.LNil, lua.LString(""), lua.LString("afterok:5"),
			lua.LString("afterok:5?after:6"),
		}).Draw(t, "dependency")
		if rapid.Bool().Draw(t, "batch") {
			words := rapid.SliceOfN(argument, 0, 20).Draw(t, "arguments")
			job["script"], job["argv"], job["argc"] = "#!/bin/sh", words, 1+len(words)
			job["environment"] = s.table(map[string]any{
				"SLURM_GPUS": "shared:1", "SLURM_EXPORT_ENV": argument.Draw(t, "export"),
			})
		}
		function := rapid.SampledFrom([]string{submit, modify}).Draw(t, "function")
		rc, set := s.ask(t, function, job)
		if c := set["admin_comment"]; c != "" {
			if n, rest := slurmjob.ParseNote(c); rest != "" || n.Args == "" || n.Comment("") != c {
				t.Fatalf("AdminComment %q", c)
			}
		}
		switch {
		case !asked:
			if rc != success || len(set) > 0 || len(s.said) > 0 {
				t.Fatalf("an ordinary job: %v, set %v, said %q", rc, set, s.said)
			}
		case rc == refused:
			if !named || len(set) > 0 || len(s.said) != 1 || len(s.said[0]) < 30 {
				t.Fatalf("a refused job: set %v, said %q", set, s.said)
			}
		case rc != success:
			t.Fatalf("returned %v", rc)
		case !named && len(set) == 0: // a part that can't be gpu:shared
			if len(s.said) > 0 {
				t.Fatalf("left as it is, said %q", s.said)
			}
		default:
			after := set["tres_per_node"]
			shares := 0
			for one := range strings.SplitSeq(after, ",") {
				if shared.MatchString(one) || police && isPart(one) {
					t.Fatalf("%q still says shared, or asks for a part", after)
				}
				if strings.HasSuffix(one, "mps:100") || strings.HasSuffix(one, "shard:100") {
					shares++
				}
			}
			byHand := police && slices.ContainsFunc(strings.Split(str(job["tres_per_node"]), ","), isPart)
			if shares != 1 && !byHand || strings.Contains(set["tres_per_job"], "shared") {
				t.Fatalf("set %v", set)
			}
			if d, ok := set["dependency"]; ok {
				own := str(job["dependency"])
				if function == modify || d != strings.TrimPrefix(own+",after:77", ",") || strings.Contains(own, "?") {
					t.Fatalf("dependency %q of %q", d, own)
				}
			}
			if said := len(s.said) == 1 && strings.Contains(s.said[0], "a part of a GPU"); said != byHand || !said &&
				len(s.said) > 0 {
				t.Fatalf("said %q", s.said)
			}
		}
		if env, ok := job["environment"].(*lua.LTable); ok {
			emptied := str(s.GetField(env, "SLURM_GPUS")) == ""
			if emptied != (len(set) > 0 && rc == success && function == submit) {
				t.Fatalf("%s: SLURM_GPUS emptied: %v", function, emptied)
			}
		}
	})
}

// shared is a request for a shared GPU in any spelling.
var shared = regexp.MustCompile(`(?s)^(gres[:/])?gpu[:=]shared([:=].*)?$`)

// partOf is a request for shares, and isPart whether it is for a part of a GPU's, on a cluster of mps.
var partOf = regexp.MustCompile(`(?s)^(?:gres[:/])?mps(?:[:=]([^:=]*))?(?:[:=](.*))?$`)

func isPart(request string) bool {
	m := partOf.FindStringSubmatch(request)
	if m == nil {
		return false
	}
	count := m[2]
	if count == "" || count == "1" && digits.MatchString(m[1]) {
		count = m[1]
	}
	return !digits.MatchString(count) || !strings.HasSuffix(count, "00") && strings.Trim(count, "0") != ""
}

var digits = regexp.MustCompile(`^[0-9]+$`)

func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case lua.LString:
		return string(v)
	}
	return ""
}

// TestTroubleInside: an error on the way lets the job pass as it came.
func TestTroubleInside(t *testing.T) {
	t.Parallel()
	s := load(t)
	shares := fields{"tres_per_node": "gres:gpu:shared"}
	for _, field := range []string{"tres_per_node", "tres_per_job", "tres_per_task", "min_nodes", "script"} {
		rc, set, err := s.call(submit, shares, field)
		if err != nil || rc != success || len(set) > 0 || len(s.logged) != 1 {
			t.Errorf("%s can't be read: %v %v, set %v, logged %q", field, rc, err, set, s.logged)
		}
	}
	// A folder where the gate file should be, a wake file that is large, as without a bridge it is never emptied, and no
	// folder for it.
	must.OK(t, os.Mkdir(s.gate, 0o700))
	for _, size := range []int{1 << 20, 0} {
		must.OK(t, os.WriteFile(s.wake, make([]byte, size), 0o600))
		if size == 0 {
			must.OK(t, os.RemoveAll(filepath.Dir(s.wake)))
		}
		rc, set := s.ask(t, submit, shares)
		must.Equal(t, rc, lua.LValue(success))
		must.Equal(t, set, map[string]string{"tres_per_node": "gres:mps:100"})
		if size > 0 {
			must.Equal(t, must.Get(os.Stat(s.wake))(t).Size(), int64(size))
		}
	}
}

// TestPartsByHand: a part of a GPU becomes gpu:shared, unless the bridge isn't there, asks
// itself, or the site says otherwise.
func TestPartsByHand(t *testing.T) {
	t.Parallel()
	s := load(t)
	const active = "uid=64030\n"
	for _, k := range []struct {
		name, file, asks, partition string
		gets, dependency, says      string
	}{
		{"half a GPU", active, "gres:mps:50", "gpu", "gres:mps:100", "after:77", "mps:50 asks for a part"},
		{"a share", active, "gres/mps", "gpu", "gres/mps:100", "after:77", "mps asks for a part"},
		{"more than a GPU", active, "gres:mps:101", "gpu", "gres:mps:200", "", "whole GPUs: mps:200"},
		{"of a type", active, "gres:mps:titanxp:1", "gpu", "gres:mps:titanxp:100", "", "whole GPUs: mps:titanxp:100"},
		{"a whole one", active, "gres:mps:100", "gpu", "", "", ""},
		{"none", active, "gres:mps:0", "gpu", "", "", ""},
		{"no number", active, "gres:mps:titanxp:0x1", "gpu", "gres:mps:titanxp:100", "", "asks for a part"},
		{"another kind", active, "gres:shard:3", "gpu", "", "", ""},
		{"twice", active, "gres:mps:50,gres:mps:50", "gpu", "", "", ""},
		{"with a GPU", active, "gres:mps:50,gres:gpu:1", "gpu", "", "", ""},
		{"no active bridge", "", "gres:mps:50", "gpu", "", "", ""},
		{"a dead bridge", active, "gres:mps:50", "gpu", "gres:mps:100", "", "asks for a part"},
		{"the bridge itself", "uid=1000\n", "gres:mps:50", "gpu", "", "", ""},
		{"an allowed user", active + "user=1000\n", "gres:mps:50", "gpu", "", "", ""},
		{"another allowed user", active + "user=1\nuser=100\n", "gres:mps:50", "gpu", "gres:mps:100", "after:77", "asks for"},
		{"a partition left alone", active + "leave=old-cards\n", "gres:mps:50", "old-cards", "", "", ""},
		{"one of two", active + "leave=old-cards\n", "gres:mps:50", "old-cards,gpu", "gres:mps:100", "after:77", "asks for"},
		{"a partition not looked after", active + "only=gpu\n", "gres:mps:50", "old", "", "", ""},
		{"one that is", active + "only=gpu\n", "gres:mps:50", "gpu", "gres:mps:100", "after:77", "asks for"},
		{"the default one, left alone", active + "leave=normal\n", "gres:mps:50", "", "gres:mps:100", "after:77", "asks for"},
	} {
		s.gateText(t, "mps", map[bool]time.Duration{true: -time.Hour, false: time.Hour}[k.name == "a dead bridge"], k.file)
		job := s.batch(k.asks, nil)
		if k.partition != "" {
			job["partition"] = k.partition
		}
		for _, function := range []string{submit, modify} {
			rc, set := s.ask(t, function, job)
			want := map[bool]string{true: k.dependency}[function == submit]
			must.Equal(t, [2]string{set["tres_per_node"], set["dependency"]}, [2]string{k.gets, want}, "%s, %s", k.name, function)
			said := strings.Join(s.said, "; ")
			if (rc == success) == (k.gets == "" && k.says != "") || !strings.Contains(said, k.says) || k.says == "" && said != "" {
				t.Errorf("%s, %s: %v, said %q", k.name, function, rc, said)
			}
		}
	}
}

// A job that shares a GPU is refused where its script's srun asks for one of its own: that would fail at once. Where it
// may never come to that srun, its owner is told.
func TestStepsWithGPUsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := load(t)
	asks := func(gres, text string) (lua.LValue, string) {
		t.Helper()
		rc, _ := s.ask(t, submit, s.batch(gres, fields{"script": "#!/bin/bash\n#SBATCH --gres=gpu:shared\n" + text}))
		return rc, strings.Join(s.said, " ")
	}
	for _, c := range []struct {
		script string
		says   string // "" = nothing
		rc     lua.LValue
	}{
		{"srun --gres=gpu:1 hostname", "the script's srun --gres=gpu:1 finds no GPU", refused},
		{"cd x\n  srun -n 1 --mpi=pmix -c4 --gpus 1 ./md", "srun --gpus=1 finds", refused},
		{"srun \\\n  --ntasks=1 \\\n  --gpus-per-task=1 ./md", "srun --gpus-per-task=1 finds", refused},
		{"OMP_NUM_THREADS=4 time srun -G1 ./md | tee log", "srun -G=1 finds", refused},
		{"exec /usr/bin/srun --exclusive --gres gpu:titanxp:1 ./md", "srun --gres=gpu:titanxp:1 finds", refused},
		{"cat <<EOF\nx\nEOF\nsrun --tres-per-task=gres/gpu:1 ./md", "--tres-per-task=gres/gpu:1", refused},
		{"if a; then b; fi\nfor x in 1; do\n y\ndone\nsrun -G 1 ./md", "srun -G=1", refused},
		{"srun --exclusive ./md --gpus 1", "where the script comes to srun --gpus=1", success},
		{"if [ $x ]; then\n  srun --gres=gpu:1 ./md\nfi", "where the script comes to srun --gres=gpu:1", success},
		{"[ $x ] && srun --gres=gpu:1 ./md", "where the script comes to", success},
		{"f() {\n srun --gpus=1 a\n}", "where the script comes to", success},
		{"cat >x.sh <<EOF\nsrun --gpus=1 a\nEOF", "where the script comes to", success},
		{"exit 0\nsrun --gpus=1 a", "where the script comes to", success},
		{"x=$(srun --gpus=1 a)", "where the script comes to", success},
		{"srun ./md", "", success},
		{"srun -n 1 ./md --gres=gpu:1", "", success},
		{"srun --gres=none ./md", "", success},
		{"srun --gres=gpu:0 ./md\nsrun -G 0 x\nsrun --gpus-per-node=0 x", "", success},
		{"srun --gres=mps:50 ./md", "", success},
		{"# srun --gres=gpu:1 ./md\n./md # srun --gpus=1", "", success},
		{"echo srun --gres=gpu:1 ./md", "", success},
		{"./mysrun --gpus 1\n./srun.sh --gpus 1\npython t.py --gpus 1", "", success},
	} {
		if rc, said := asks("gpu:shared", c.script); rc != c.rc || c.says == "" && said != "" ||
			!strings.Contains(said, c.says) {
			t.Errorf("%q: %v, said %q, want %v, %q", c.script, rc, said, c.rc, c.says)
		}
		if rc, said := asks("gpu:1", c.script); rc != success || said != "" {
			t.Errorf("%q of a whole GPU: %v, said %q", c.script, rc, said)
		}
	}
}

// Slurm takes scripts of 4 MiB: none keeps slurmctld for long, nor ends it. Lua itself runs the script here, since the
// stand-in's patterns take no long texts.
func TestNoScriptKeepsSlurmctld(t *testing.T) {
	t.Parallel()
	lua, err := exec.LookPath("lua")
	if err != nil {
		t.Skip("there is no lua")
	}
	const program = `slurm = { SUCCESS = 0, ERROR = -1, log_user = function() end, log_error = function(_, s) error(s) end }
		local m = dofile("job_submit.lua")
		m.conf.gate, m.conf.wake = arg[1], arg[1] .. ".wake"
		local part, line, long = arg[2], tonumber(arg[3]), 4194304
		local text = part:rep(long / #part)
		if line > 0 then text = (text:sub(1, line) .. "\n"):rep(long / line) end
		m.submit({ tres_per_node = arg[4], script = text, argc = 1, argv = {}, environment = {}, user_id = 1000, partition = "gpu" }, {}, 1000)`
	s := load(t)
	withRules(t, s, &adopt.Policy{Active: true, Percent: 100, Rules: []adopt.Rule{{}}}, "")
	parts := []string{
		"srun", "srun ", "srun --gres ", "srun -n", " srun \\\n", "<<srun\n", "a;srun -", "A=1 srun \t",
		"{ srun\n", "srun  {   ", "\"srun '",
	}
	for _, part := range parts {
		for _, line := range []string{"0", "8000"} {
			for _, gres := range []string{"gpu:shared", "gpu:1"} {
				cmd := exec.CommandContext(t.Context(), lua, "-", s.gate, part, line, gres)
				cmd.Stdin = strings.NewReader(program)
				out, err := cmd.CombinedOutput()
				// This takes up to a second of a processor; of the square of a line's length it would take minutes.
				took := cmd.ProcessState.UserTime()
				if err != nil || took > time.Minute {
					t.Errorf("%q in lines of %s, %s: %v, %v %s", part, line, gres, took, err, out)
				} else {
					t.Logf("%q in lines of %s, %s: %v", part, line, gres, took)
				}
			}
		}
	}
}

// What is noted of a submission's arguments is what the bridge's commands say it would be.
func TestNotedArguments(t *testing.T) {
	t.Parallel()
	s := load(t)
	must.OK(t, os.WriteFile(s.gate, []byte("gres=mps\nunits=100\n"), 0o600))
	word := rapid.OneOf(rapid.String(), rapid.StringMatching(`-{0,2}[a-zA-Z_]{0,9}[-=._0-9xXeEkM]{0,12}(.csv)?`),
		rapid.SampledFrom([]string{
			"-n", "128", "--lr=1e-3", "-b64", "part_007.csv", "N=4096", "small/x", "12345678901",
			"1.5GB", "1e+5",
		}))
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 0, 60).Draw(t, "words")
		_, set := s.ask(t, submit, s.batch("gpu:shared", fields{"argv": words, "argc": 1 + len(words)}))
		n, _ := slurmjob.ParseNote(set["admin_comment"])
		must.Equal(t, n.Args, slurmjob.NoteArgs(words), "%q are noted as %q", words, set["admin_comment"])
	})
}
