package contrib

import (
	"fmt"
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
	said   []string // to users
	logged []string
}

func load(t interface {
	Fatal(args ...any)
}, gate, wake string,
) *script {
	s := &script{LState: lua.NewState()}
	table := s.NewTable()
	s.SetField(table, "SUCCESS", lua.LNumber(0))
	s.SetField(table, "ERROR", lua.LNumber(-1))
	keep := func(to *[]string) lua.LGFunction {
		return func(l *lua.LState) int {
			*to = append(*to, strings.Replace(l.CheckString(1), "%s", l.OptString(2, ""), 1))
			return 0
		}
	}
	s.SetField(table, "log_user", s.NewFunction(keep(&s.said)))
	s.SetField(table, "log_error", s.NewFunction(keep(&s.logged)))
	s.SetGlobal("slurm", table)
	text, err := os.ReadFile("job_submit.lua")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DoString(string(text)); err != nil {
		t.Fatal(err)
	}
	m, ok := s.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatal("the script returns no table")
	}
	conf := s.GetField(m, "conf")
	s.SetField(conf, "gate", lua.LString(gate))
	s.SetField(conf, "wake", lua.LString(wake))
	return s
}

// userID is who submits and changes jobs, bridgeID the bridge.
const userID, bridgeID = 1000, 64030

// call hands a job to slurm_job_submit or slurm_job_modify and returns what it
// returned and what it set.
func (s *script) call(function string, job map[string]lua.LValue, fails string) (lua.LValue, map[string]string, error) {
	set := map[string]string{}
	desc, meta := s.NewTable(), s.NewTable()
	s.SetField(meta, "__index", s.NewFunction(func(l *lua.LState) int {
		name := l.CheckString(2)
		if name == fails {
			l.RaiseError("no %s here", name)
		}
		if v, ok := job[name]; ok {
			l.Push(v)
		} else {
			l.Push(lua.LNil)
		}
		return 1
	}))
	s.SetField(meta, "__newindex", s.NewFunction(func(l *lua.LState) int {
		set[l.CheckString(2)] = l.CheckString(3)
		return 0
	}))
	s.SetMetatable(desc, meta)
	args := []lua.LValue{desc, lua.LNil, lua.LNumber(userID)}
	if function == "slurm_job_modify" {
		args = []lua.LValue{desc, s.NewTable(), lua.LNil, lua.LNumber(userID)}
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

// A batch job that asks for a part of a GPU by hand is noted as one; no other job is, whoever submits it.
func TestPartsByHandAreNoted(t *testing.T) {
	t.Parallel()
	s := load(t, "/nowhere", "/nowhere")
	for request, hand := range map[string]bool{
		"gres:mps:10": true, "gres/shard:t4:30": true, "gres:gpu:1,gres:mps:50": true, "gres:mps:100": false,
		"gres:mps:200":    false,
		"gres:gpu:shared": false, "gres:gpu:1": false, "": false,
	} {
		for _, inherited := range []string{"", "1"} {
			env := s.NewTable()
			s.SetField(env, "SLURMBRIDGE_HAND", lua.LString(inherited))
			job := map[string]lua.LValue{
				"script": lua.LString("#!/bin/sh"), "tres_per_node": lua.LString(request),
				"environment": env,
			}
			rc, set, err := s.call("slurm_job_submit", job, "")
			must.OK(t, err)
			if to, ok := set["tres_per_node"]; ok {
				job["tres_per_node"] = lua.LString(to)
			}
			got := lua.LVAsString(s.GetField(env, "SLURMBRIDGE_HAND"))
			if rc != success || (got != "") != hand {
				t.Errorf("%q, inherited %q: %v, noted %q", request, inherited, rc, got)
			}
		}
	}
	if rc, _, err := s.call("slurm_job_submit", map[string]lua.LValue{"tres_per_node": lua.LString("gres:mps:10")},
		""); rc != success || err != nil {
		t.Errorf("srun, which sends no environment: %v %v", rc, err)
	}
}

// The gate's partition leaves a list of several, whoever made it, and nothing else does.
func TestTheGatesPartitionLeavesLists(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	s := load(t, gate, filepath.Join(dir, "wake"))
	defer s.Close()
	for _, c := range []struct{ file, list, want string }{
		{"", "cpu,slurmbridge,gpu", "cpu,gpu"},
		{"", "slurmbridge,gpu", "gpu"},
		{"", "slurmbridge", ""},             // the gate itself
		{"", "slurmbridge,slurmbridge", ""}, // Slurm refuses it
		{"", "cpu,slurmbridge2", ""},
		{"", "cpu,gpu", ""},
		{"partition=gates\n", "cpu,slurmbridge,gates", "cpu,slurmbridge"},
	} {
		must.OK(t, os.WriteFile(gate, []byte(c.file), 0o600))
		for _, request := range []string{"", "gres/gpu:1", "gres/gpu:shared"} {
			job := map[string]lua.LValue{"partition": lua.LString(c.list), "tres_per_node": lua.LString(request)}
			rc, set, err := s.call("slurm_job_submit", job, "")
			if err != nil || rc != success || set["partition"] != c.want {
				t.Errorf("%q, %s with %q: %q, want %q; %v", c.file, c.list, request, set["partition"], c.want, err)
			}
		}
	}
}

// TestWhateverASlurmctldSays: no request and no gate file makes the script raise
// an error; a job that doesn't say gpu:shared is not touched; one that does is
// refused with a sentence, or asks for a whole GPU's shares and no gpu:shared any
// more; what else it asked for stays.
func TestWhateverASlurmctldSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate, wake := filepath.Join(dir, "gate"), filepath.Join(dir, "wake")
	s := load(t, gate, wake)
	defer s.Close()
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
			rapid.String(),
		).Draw(t, "gate")
		if err := os.WriteFile(gate, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		job := map[string]lua.LValue{}
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
			job["script"] = lua.LString("#!/bin/sh")
			env := s.NewTable()
			s.SetField(env, "SLURM_GPUS", lua.LString("shared:1"))
			s.SetField(env, "SLURM_EXPORT_ENV", lua.LString(argument.Draw(t, "export")))
			argv := s.NewTable()
			words := rapid.SliceOfN(argument, 0, 20).Draw(t, "arguments")
			for i, w := range words {
				argv.RawSetInt(i+1, lua.LString(w))
			}
			job["argv"], job["argc"] = argv, lua.LNumber(1+len(words))
			job["environment"] = env
		}
		function := rapid.SampledFrom([]string{"slurm_job_submit", "slurm_job_modify"}).Draw(t, "function")
		s.said, s.logged = nil, nil
		rc, set, err := s.call(function, job, "")
		if err != nil || len(s.logged) > 0 {
			t.Fatalf("error %v, logged %q", err, s.logged)
		}
		if c := set["admin_comment"]; c != "" {
			if n, rest := slurmjob.ParseNote(c); rest != slurmjob.CommentPrefix || n.Args == "" || n.Comment("") != c {
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
				if function == "slurm_job_modify" || d != strings.TrimPrefix(own+",after:77", ",") || strings.Contains(own, "?") {
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
			if emptied != (len(set) > 0 && rc == success && function == "slurm_job_submit") {
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

func str(v lua.LValue) string {
	if s, ok := v.(lua.LString); ok {
		return string(s)
	}
	return ""
}

// TestTroubleInside: an error on the way lets the job pass as it came.
func TestTroubleInside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := load(t, filepath.Join(dir, "gate"), filepath.Join(dir, "no", "wake"))
	defer s.Close()
	for _, field := range []string{"tres_per_node", "tres_per_job", "tres_per_task", "min_nodes", "script"} {
		s.logged = nil
		rc, set, err := s.call("slurm_job_submit", map[string]lua.LValue{"tres_per_node": lua.LString("gres:gpu:shared")},
			field)
		if err != nil || rc != success || len(set) > 0 || len(s.logged) != 1 {
			t.Errorf("%s can't be read: %v %v, set %v, logged %q", field, rc, err, set, s.logged)
		}
	}
	// A folder, where the gate file should be, and no folder for the wake file.
	if err := os.Mkdir(filepath.Join(dir, "gate"), 0o700); err != nil {
		t.Fatal(err)
	}
	rc, set, err := s.call("slurm_job_submit", map[string]lua.LValue{"tres_per_node": lua.LString("gres:gpu:shared")}, "")
	if err != nil || rc != success || set["tres_per_node"] != "gres:mps:100" || len(set) != 1 {
		t.Errorf("%v %v, set %v", rc, err, set)
	}
}

// TestWakeFileStaysSmall: without a bridge the file is never emptied.
func TestWakeFileStaysSmall(t *testing.T) {
	t.Parallel()
	wake := filepath.Join(t.TempDir(), "wake")
	if err := os.WriteFile(wake, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := load(t, "/nonexistent/gate", wake)
	defer s.Close()
	if rc, _, err := s.call("slurm_job_submit", map[string]lua.LValue{"tres_per_node": lua.LString("gpu:shared")},
		""); err != nil || rc != success {
		t.Fatal(rc, err)
	}
	if info, err := os.Stat(wake); err != nil || info.Size() != 1<<20 {
		t.Errorf("%v %v", info, err)
	}
}

// TestPartsByHand: a part of a GPU becomes gpu:shared, unless the bridge isn't there, asks
// itself, or the site says otherwise.
func TestPartsByHand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	s := load(t, gate, filepath.Join(dir, "wake"))
	defer s.Close()
	fresh := fmt.Sprintf("job=77\nexpires=%d\ngres=mps\nunits=100\n", time.Now().Add(time.Hour).Unix())
	stale := fmt.Sprintf("job=77\nexpires=%d\ngres=mps\nunits=100\n", time.Now().Add(-time.Hour).Unix())
	active := fresh + fmt.Sprintf("uid=%d\n", bridgeID)
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
		{"no active bridge", fresh, "gres:mps:50", "gpu", "", "", ""},
		{"a dead bridge", stale + "uid=64030\n", "gres:mps:50", "gpu", "gres:mps:100", "", "asks for a part"},
		{"the bridge itself", fresh + "uid=1000\n", "gres:mps:50", "gpu", "", "", ""},
		{"an allowed user", active + "user=1000\n", "gres:mps:50", "gpu", "", "", ""},
		{"another allowed user", active + "user=1\nuser=100\n", "gres:mps:50", "gpu", "gres:mps:100", "after:77", "asks for"},
		{"a partition left alone", active + "leave=old-cards\n", "gres:mps:50", "old-cards", "", "", ""},
		{"one of two", active + "leave=old-cards\n", "gres:mps:50", "old-cards,gpu", "gres:mps:100", "after:77", "asks for"},
		{"a partition not looked after", active + "only=gpu\n", "gres:mps:50", "old", "", "", ""},
		{"one that is", active + "only=gpu\n", "gres:mps:50", "gpu", "gres:mps:100", "after:77", "asks for"},
		{"the default one, left alone", active + "leave=normal\n", "gres:mps:50", "", "gres:mps:100", "after:77", "asks for"},
	} {
		if err := os.WriteFile(gate, []byte(k.file), 0o600); err != nil {
			t.Fatal(err)
		}
		s.said = nil
		job := map[string]lua.LValue{
			"tres_per_node": lua.LString(k.asks), "script": lua.LString("#!/bin/sh"),
			"environment": s.NewTable(),
		}
		if k.partition != "" {
			job["partition"] = lua.LString(k.partition)
		}
		for _, function := range []string{"slurm_job_submit", "slurm_job_modify"} {
			rc, set, err := s.call(function, job, "")
			want := k.dependency
			if function == "slurm_job_modify" {
				want = ""
			}
			said := strings.Join(s.said, "; ")
			if err != nil || set["tres_per_node"] != k.gets || set["dependency"] != want ||
				(rc == success) == (k.gets == "" && k.says != "") || !strings.Contains(said, k.says) || k.says == "" && said != "" {
				t.Errorf("%s, %s: %v %v, set %q, said %q", k.name, function, rc, err, set, said)
			}
		}
	}
}

// A job that shares a GPU is refused where its script's srun asks for one of its own: that would fail at once. Where it
// may never come to that srun, its owner is told.
func TestStepsWithGPUsOfTheirOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := load(t, filepath.Join(dir, "gate"), filepath.Join(dir, "wake"))
	defer s.Close()
	submit := func(gres, text string) (lua.LValue, string) {
		t.Helper()
		rc, _, err := s.call("slurm_job_submit", map[string]lua.LValue{
			"tres_per_node": lua.LString(gres), "script": lua.LString("#!/bin/bash\n#SBATCH --gres=gpu:shared\n" + text),
			"argc": lua.LNumber(1), "argv": s.NewTable(), "environment": s.NewTable(),
		}, "")
		said := strings.Join(s.said, " ")
		if s.said = nil; err != nil || len(s.logged) > 0 {
			t.Fatal(err, s.logged)
		}
		return rc, said
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
		if rc, said := submit("gpu:shared", c.script); rc != c.rc || c.says == "" && said != "" ||
			!strings.Contains(said, c.says) {
			t.Errorf("%q: %v, said %q, want %v, %q", c.script, rc, said, c.rc, c.says)
		}
		if rc, said := submit("gpu:1", c.script); rc != success || said != "" {
			t.Errorf("%q of a whole GPU: %v, said %q", c.script, rc, said)
		}
	}
}

// Slurm takes scripts of 4 MiB: none keeps slurmctld for long, nor ends it. Lua itself runs the script here, since the
// stand-in's patterns take no long texts.
func TestHostileScriptsTakeNoTime(t *testing.T) {
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
	gate := filepath.Join(t.TempDir(), "gate")
	withRules(t, gate, &adopt.Policy{Active: true, Percent: 100, Rules: []adopt.Rule{{}}}, "")
	parts := []string{
		"srun", "srun ", "srun --gres ", "srun -n", " srun \\\n", "<<srun\n", "a;srun -", "A=1 srun \t",
		"{ srun\n", "srun  {   ", "\"srun '",
	}
	for _, part := range parts {
		for _, line := range []string{"0", "8000"} {
			for _, gres := range []string{"gpu:shared", "gpu:1"} {
				start := time.Now()
				cmd := exec.CommandContext(t.Context(), lua, "-", gate, part, line, gres)
				cmd.Stdin = strings.NewReader(program)
				out, err := cmd.CombinedOutput()
				// This takes up to a second; of the square of a line's length it would take minutes.
				if took := time.Since(start); err != nil || took > 20*time.Second {
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
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	must.OK(t, os.WriteFile(gate, []byte("gres=mps\nunits=100\n"), 0o600))
	s := load(t, gate, filepath.Join(dir, "wake"))
	defer s.Close()
	word := rapid.OneOf(rapid.String(), rapid.StringMatching(`-{0,2}[a-zA-Z_]{0,9}[-=._0-9xXeEkM]{0,12}(.csv)?`),
		rapid.SampledFrom([]string{
			"-n", "128", "--lr=1e-3", "-b64", "part_007.csv", "N=4096", "small/x", "12345678901",
			"1.5GB", "1e+5",
		}))
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 0, 60).Draw(t, "words")
		argv := s.NewTable()
		for i, w := range words {
			s.RawSetInt(argv, i+1, lua.LString(w))
		}
		_, set, err := s.call("slurm_job_submit", map[string]lua.LValue{
			"tres_per_node": lua.LString("gpu:shared"), "script": lua.LString("#!/bin/sh\ntrue"),
			"argc": lua.LNumber(len(words) + 1),
			"argv": argv, "environment": s.NewTable(),
		}, "")
		if err != nil {
			t.Fatal(err)
		}
		want := slurmjob.NoteArgs(words)
		if n, _ := slurmjob.ParseNote(set["admin_comment"]); n.Args != want {
			t.Fatalf("%q are noted as %q, want %q", words, set["admin_comment"], want)
		}
	})
}
