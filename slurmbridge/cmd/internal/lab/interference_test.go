package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// files writes each text to a file of that name and returns its folder.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// refused is a command line that ends with a status and one sentence.
type refused struct {
	args   []string
	status int
	want   string
}

func refuses(t *testing.T, command []string, all []refused) {
	t.Helper()
	for _, c := range all {
		status, out, errOut := call(slices.Concat(command, c.args)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%v: status %d, %q and %q; want %d, %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
}

var scoreFiles = map[string]string{
	"p.csv": "app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\n" +
		"light,60,20,,500,,,5\nmid,60,60,,2000,,,50\nheavy,,98,,9000,,,200\n",
	"q.csv": "victim,aggressor,slowdown\nlight,light,1.01\nlight,mid,1.02\nlight,heavy,2.1\n" +
		"mid,mid,1.3\nmid,heavy,1.9\nheavy,light,1.1\nheavy,heavy,2.05\n",
	"o.csv": "victim,aggressor,slowdown\nlight,heavy,2.2\nheavy,light,1.08\nheavy,mid,1.4\n",
}

func TestInterferenceScore(t *testing.T) {
	dir := files(t, scoreFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	plain := []string{"interference", "score", "--profiles", in("p.csv"), "--pairs", in("q.csv")}

	var reports [2]interference.Report
	for i, more := range [][]string{{"--json"}, {"--json", "--observed", in("o.csv")}} {
		status, out, errOut := call(append(plain, more...)...)
		must.Equal(t, status, 0, errOut)
		r := &reports[i]
		must.OK(t, json.Unmarshal([]byte(out), r))
		if r.N != 7 || !(r.MAE > 0 && r.MAE < r.BaselineConstant.MAE) || !(r.Spearman > 0.5) {
			t.Errorf("the model says no more than a constant: %s", out)
		}
	}
	if reports[0].MAE == reports[1].MAE || reports[0].BaselineSumUtil != reports[1].BaselineSumUtil {
		t.Errorf("what was observed changes the model alone: %+v, %+v", reports[0], reports[1])
	}
	status, out, errOut := call(plain...)
	must.Equal(t, status, 0, errOut)
	for _, want := range []string{"7 measurements", "model", "constant", "utilisation", "rank correlation"} {
		if !strings.Contains(strings.ToLower(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestInterferenceScoreRefuses(t *testing.T) {
	dir := files(t, scoreFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"unknown.csv": "victim,aggressor,slowdown\nlight,mid,1.1\nlight,ghost,1.2\n",
		"empty.csv":   "",
	} {
		must.OK(t, os.WriteFile(in(name), []byte(text), 0o600))
	}
	refuses(t, []string{"interference", "score"}, []refused{
		{nil, 2, "--profiles and --pairs are needed"},
		{[]string{"--profiles", in("p.csv")}, 2, "--profiles and --pairs are needed"},
		{
			[]string{"--profiles", in("p.csv"), "--pairs", in("q.csv"), "--law", "mpi"},
			2,
			`--law is "mpi"; there are mps and time-slice`,
		},
		{[]string{"--profiles", in("empty.csv"), "--pairs", in("q.csv")}, 1, "empty.csv: the file is empty"},
		{
			[]string{"--profiles", in("p.csv"), "--pairs", in("unknown.csv")},
			1,
			`unknown.csv:3: aggressor: unknown application "ghost"; there are heavy, light, mid`,
		},
		{
			[]string{"--profiles", in("p.csv"), "--pairs", in("q.csv"), "--observed", in("unknown.csv")},
			1,
			`unknown.csv:3: aggressor: unknown application "ghost"`,
		},
	})
}

// TestInterferenceScoreByLaw: the law is that of the card's way of sharing, and the memory's
// utilisation is learned from.
func TestInterferenceScoreByLaw(t *testing.T) {
	dir := files(t, map[string]string{
		"p.csv":  "app,gpu_util,mem_util\na,90,90\nb,90,10\nc,90,85\nd,90,15\n",
		"q.csv":  "victim,aggressor,slowdown\nc,d,1.3\nd,c,1.7\nc,c,2.9\nd,d,1.1\n",
		"o.csv":  "victim,aggressor,slowdown\na,a,3\nb,b,1.1\na,b,1.3\nb,a,1.7\n",
		"no.csv": "app,gpu_util\na,90\nb,90\nc,90\nd,90\n",
	})
	mae := func(profiles string, more ...string) float64 {
		t.Helper()
		in := func(name string) string { return filepath.Join(dir, name) }
		args := []string{"interference", "score", "--json", "--profiles", in(profiles), "--pairs", in("q.csv")}
		status, out, errOut := call(append(args, more...)...)
		must.Equal(t, status, 0, errOut)
		var r interference.Report
		must.OK(t, json.Unmarshal([]byte(out), &r))
		return r.MAE
	}
	if mps, turns := mae("p.csv"), mae("p.csv", "--law", "time-slice"); mps == turns {
		t.Errorf("MPS and turns both err by %v", mps)
	}
	seen := filepath.Join(dir, "o.csv")
	if with, without := mae("p.csv", "--observed", seen), mae("no.csv", "--observed", seen); with > without-0.1 {
		t.Errorf("knowing the memory's utilisation %v, else %v", with, without)
	}
}
