package lab

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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

	type figures struct {
		N              *int     `json:"n"`
		MAE            *float64 `json:"mae"`
		Spearman       *float64 `json:"spearman"`
		MedianRelError *float64 `json:"median_rel_error"`
	}
	var reports [2]struct {
		figures
		Constant figures `json:"baseline_constant"`
		SumUtil  figures `json:"baseline_sum_util"`
	}
	for i, args := range [][]string{append(plain, "--json"), append(plain, "--json", "--observed", in("o.csv"))} {
		var out, errOut bytes.Buffer
		if rc := run(args, &out, &errOut); rc != 0 || errOut.Len() > 0 {
			t.Fatalf("%v: status %d, %s", args, rc, errOut.String())
		}
		r := &reports[i]
		if err := json.Unmarshal(out.Bytes(), r); err != nil {
			t.Fatalf("%s: %v", out.String(), err)
		}
		if r.N == nil || *r.N != 7 || r.MAE == nil || r.Spearman == nil || r.MedianRelError == nil ||
			r.Constant.MAE == nil || r.SumUtil.MAE == nil || r.SumUtil.Spearman == nil {
			t.Fatalf("a key is missing: %s", out.String())
		}
		if !(*r.MAE > 0 && *r.MAE < *r.Constant.MAE) || !(*r.Spearman > 0.5) {
			t.Errorf("the model says no more than a constant: %s", out.String())
		}
	}
	if *reports[0].MAE == *reports[1].MAE {
		t.Error("what was observed changed nothing")
	}
	if *reports[0].SumUtil.MAE != *reports[1].SumUtil.MAE {
		t.Error("what was observed changed max(1, Σ utilisation)")
	}

	var out, errOut bytes.Buffer
	if rc := run(plain, &out, &errOut); rc != 0 {
		t.Fatal(errOut.String())
	}
	for _, want := range []string{"7 measurements", "model", "constant", "utilisation", "rank correlation"} {
		if !strings.Contains(strings.ToLower(out.String()), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestInterferenceScoreRefuses(t *testing.T) {
	dir := files(t, scoreFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"unknown.csv": "victim,aggressor,slowdown\nlight,mid,1.1\nlight,ghost,1.2\n",
		"bad.csv":     "victim,aggressor,slowdown\nlight,mid,x\n",
		"empty.csv":   "",
	} {
		must.OK(t, os.WriteFile(in(name), []byte(text), 0o600))
	}
	for _, c := range []struct {
		args []string
		rc   int
		want string
	}{
		{nil, 2, "--profiles and --pairs are needed"},
		{[]string{"--profiles", in("p.csv")}, 2, "--profiles and --pairs are needed"},
		{[]string{"--nonsense"}, 2, "unknown flag"},
		{[]string{"--profiles", in("p.csv"), "--pairs", in("q.csv"), "--law", "mpi"}, 2, `--law is "mpi"; there are mps and time-slice`},
		{[]string{"--profiles", in("none.csv"), "--pairs", in("q.csv")}, 1, "none.csv: open: no such file"},
		{[]string{"--profiles", in("empty.csv"), "--pairs", in("q.csv")}, 1, "empty.csv: the file is empty"},
		{[]string{"--profiles", in("q.csv"), "--pairs", in("q.csv")}, 1, "q.csv:1: app: the header lacks this column"},
		{[]string{"--profiles", in("p.csv"), "--pairs", in("bad.csv")}, 1, `bad.csv:2: slowdown: "x" is not a number`},
		{[]string{"--profiles", in("p.csv"), "--pairs", in("unknown.csv")}, 1, `unknown.csv:3: aggressor: unknown application "ghost"; there are heavy, light, mid`},
		{[]string{"--profiles", in("p.csv"), "--pairs", in("q.csv"), "--observed", in("unknown.csv")}, 1, `unknown.csv:3: aggressor: unknown application "ghost"`},
	} {
		var out, errOut bytes.Buffer
		if rc := run(append([]string{"interference", "score"}, c.args...), &out, &errOut); rc != c.rc {
			t.Errorf("%v: status %d, want %d", c.args, rc, c.rc)
		}
		if !strings.Contains(errOut.String(), c.want) || out.Len() > 0 {
			t.Errorf("%v: %q and %q, want %q", c.args, out.String(), errOut.String(), c.want)
		}
	}
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
		var out, errOut bytes.Buffer
		args := append([]string{"interference", "score", "--json", "--profiles", filepath.Join(dir, profiles), "--pairs", filepath.Join(dir, "q.csv")}, more...)
		var r struct {
			MAE      float64 `json:"mae"`
			WithinSD float64 `json:"within_sd"`
		}
		if rc := run(args, &out, &errOut); rc != 0 {
			t.Fatal(errOut.String())
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.WithinSD < 0 || r.WithinSD > 1 {
			t.Fatalf("%v: %s", err, &out)
		}
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
