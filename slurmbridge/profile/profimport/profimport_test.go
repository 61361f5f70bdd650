package profimport

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

func accounting(t *testing.T) []Job {
	t.Helper()
	f := must.Get(os.Open("testdata/sacct.txt"))(t)
	defer f.Close()
	jobs := must.Get(ReadSacct(f, "sacct.txt", time.UTC))(t)
	return jobs
}

func TestFromSacct(t *testing.T) {
	jobs := accounting(t)
	if len(jobs) != 9 || jobs[1].Name != "a|b" || jobs[2].ID != "120_4" || jobs[2].RawID != "124" {
		t.Fatalf("%+v", jobs)
	}
	runs, skipped := FromSacct(jobs)
	for why, n := range map[string]int{notCompleted: 2, noGPU: 2, manyGPUs: 1, shared: 1, noMemory: 1} {
		if skipped[why] != n {
			t.Errorf("%d %s, want %d", skipped[why], why, n)
		}
	}
	if len(runs) != 2 {
		t.Fatalf("%d runs: %+v; %v", len(runs), runs, skipped)
	}
	// 101: two tasks of 3 GiB at most, half of the run at 2 × 30 %.
	p := runs[0].Profile
	if p.DurationS != 600 || p.Peak().MemMiB != 6144 || math.Abs(p.Mean().GPU-0.3) > 1e-9 {
		t.Errorf("%+v", p)
	}
	if p := runs[1].Profile; p.Peak().MemMiB != 38888 || p.Mean().GPU != 1 || p.DurationS != 1200 {
		t.Errorf("%+v", p)
	}
	got := Profiles(runs, ByName)
	if len(got) != 2 || got[0].Profile.App != "a_b" || got[1].User != "ann" || got[1].Profile.Runs != 0 ||
		got[1].Profile.Source != "imported from sacct (jobs: 1); not known: SM use, PCIe, change over time" {
		t.Errorf("%+v", got)
	}
}

func TestStepsAtOneTimeAddUp(t *testing.T) {
	head := "JobID|JobName|User|State|Start|End|NTasks|AllocTRES|TRESUsageInMax|TRESUsageInAve\n"
	rows := "7|x|u|COMPLETED|1000|2000||gres/gpu=1||\n" +
		"7.0|s||COMPLETED|1000|1500|1||gres/gpumem=100M,gres/gpuutil=50|\n" +
		"7.1|s||COMPLETED|1400|2000|1||gres/gpumem=10M,gres/gpuutil=0|\n" +
		"7.2|s||COMPLETED|1600|2000|1||gres/gpumem=60M,gres/gpuutil=20|gres/gpuutil=10\n"
	jobs, err := ReadSacct(strings.NewReader(head+rows), "f", time.UTC)
	if err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	if j := jobs[0]; j.MemMiB != 110 || math.Abs(j.GPU-(0.5*500+0.1*400)/1000) > 1e-9 {
		t.Errorf("%+v", j)
	}
}

func TestBadSacct(t *testing.T) {
	head := "JobID|JobName|User|State|Start|End|NTasks|AllocTRES|TRESUsageInMax\n"
	for text, want := range map[string]string{
		"":                          "f: the file is empty",
		head:                        "f: there is no row",
		"JobID|JobName\n":           "f:1: User: the header lacks this column; it has JobID|JobName; ask sacct for --parsable2 --format=JobID,",
		"JobID|JobID\n":             `f:1: column "JobID" stands there twice`,
		head[:len(head)-1] + "|x\n": "f: there is no row",
		"JobID|JobName|User|State|Start|End|AllocTRES|TRESUsageInMax\n": "NTasks",
		head + "1|a\n":                                            "f:2: 2 fields, the header has 9",
		head + "x|n|u|COMPLETED|1000|2000|||\n":                   "f:2: JobID: \"x\"",
		head + "\n1|n|u|COMPLETED|soon|2000|||\n":                 "f:3: Start",
		head + "1|n|u|COMPLETED|1000|2000||gres/gpu=x|\n":         "f:2: AllocTRES",
		head + "1.0|n|u|COMPLETED|1000|2000|x||\n":                "f:2: NTasks",
		head + "1.0|n|u|COMPLETED|1000|2000|1||gres/gpumem=1X\n":  "f:2: TRESUsageInMax",
		head + "1.0|n|u|COMPLETED|1000|2000|1||gres/gpuutil=-1\n": "f:2: TRESUsageInMax",
		head + strings.Repeat("x", table.MaxLine+1):               "f:2: the line is too long",
		head + "1.0|n|u|COMPLETED|1000|2000|1||gres/gpumem=M\n":   "f:2: TRESUsageInMax",
	} {
		_, err := ReadSacct(strings.NewReader(text), "f", time.UTC)
		var at *table.Error
		if !errors.As(err, &at) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

// matrix writes an answer: a line a series, whose values are at from, from+step, …
func matrix(series ...string) string {
	return `{"status":"success","data":{"resultType":"matrix","result":[` + "\n" + strings.Join(series, ",\n") + "\n]},\"infos\":[\"x\"]}\n"
}

func line(labels string, from time.Time, step float64, values ...string) string {
	var out []string
	for i, v := range values {
		out = append(out, fmt.Sprintf("[%.3f,%q]", float64(from.Unix())+step*float64(i), v))
	}
	return `{"metric":{` + labels + `},"values":[` + strings.Join(out, ",") + `]}`
}

var ten = time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)

// dcgm is job 101's ten minutes, a sample in two.
func dcgm(metric, job, uuid string, values ...string) string {
	return line(fmt.Sprintf(`"__name__":%q,"hpc_job":%q,"UUID":%q,"gpu":"0","Hostname":"n1","modelName":"NVIDIA A100"`, metric, job, uuid), ten, 120, values...)
}

func TestPrometheus(t *testing.T) {
	text := matrix(
		dcgm("DCGM_FI_DEV_GPU_UTIL", "101", "GPU-1", "0", "100", "50", "50", "50"),
		dcgm("DCGM_FI_DEV_FB_USED", "101", "GPU-1", "500", "6000", "6100", "6000", "6000"),
	) + matrix(
		dcgm("DCGM_FI_PROF_SM_ACTIVE", "101", "GPU-1", "0", "0.9", "0.4", "0.4", "0.4"),
		dcgm("DCGM_FI_PROF_PCIE_TX_BYTES", "101", "GPU-1", "0", "1e6", "2e6", "2e6", "2e6"),
		dcgm("DCGM_FI_PROF_PCIE_RX_BYTES", "101", "GPU-1", "1e6", "1e6", "1e6", "1e6", "1e6"),
		dcgm("DCGM_FI_DEV_POWER_USAGE", "101", "GPU-1", "1", "2"),
		dcgm("DCGM_FI_DEV_FB_USED", "999", "GPU-7", "1"),
	)
	series, err := ReadPrometheus(strings.NewReader(text), "f")
	if err != nil || len(series) != 7 {
		t.Fatal(len(series), err)
	}
	runs, skipped := Join(accounting(t), NewIndex(series, ""))
	if len(runs) != 1 || skipped[noSeries] != 2 {
		t.Fatalf("%+v %v", runs, skipped)
	}
	r := runs[0]
	p := r.Profile
	if p.DurationS != 600 || p.PeriodS != 120 || len(p.Series) != 5 || r.From != "dcgm-exporter" || len(r.Unknown) != 0 {
		t.Fatalf("%+v %+v", r, p)
	}
	if u := p.Series[2]; u.GPU != 0.5 || u.MemMiB != 6100 || u.Core != 0.4 || u.PCIeMBps != 3 {
		t.Errorf("%+v", u)
	}
}

// However long a job ran, a peak of its memory is kept.
func TestPeaksAreKept(t *testing.T) {
	values := make([]string, 6000)
	for i := range values {
		values[i] = "100"
	}
	values[4321] = "9000"
	series := must.Get(ReadPrometheus(strings.NewReader(matrix(line(`"__name__":"DCGM_FI_DEV_FB_USED","hpc_job":"1","UUID":"GPU-1"`, ten, 1, values...))), "f"))(t)
	j := Job{ID: "1", RawID: "1", State: "COMPLETED", Start: ten, End: ten.Add(6000 * time.Second), GPUs: 1}
	runs, skipped := Join([]Job{j}, NewIndex(series, ""))
	if len(runs) != 1 || len(runs[0].Profile.Series) > 512 || runs[0].Profile.Peak().MemMiB != 9000 {
		t.Errorf("%+v %v", runs, skipped)
	}
}

func TestWhatIsNotKnown(t *testing.T) {
	fb := func(values ...string) string { return dcgm("DCGM_FI_DEV_FB_USED", "101", "GPU-1", values...) }
	whole := fb("500", "600", "600", "600", "600")
	for name, c := range map[string]struct {
		series []string
		why    string
		check  func(Run) bool
	}{
		"no utilisation counts as all": {[]string{whole}, "", func(r Run) bool {
			return r.Profile.Mean().GPU == 1 && strings.Join(r.Unknown, ",") == "utilisation,SM use,PCIe"
		}},
		"DCGM's blanks":   {[]string{fb("9223372036854775794", "600", "600", "600", "600")}, fewSamples, nil},
		"only NaN":        {[]string{fb("NaN", "NaN", "+Inf", "-1", "NaN")}, fewSamples, nil},
		"half of it":      {[]string{fb("500", "600")}, fewSamples, nil},
		"memory 0":        {[]string{fb("0", "0", "0", "0", "0")}, noMemory, nil},
		"no memory":       {[]string{dcgm("DCGM_FI_DEV_GPU_UTIL", "101", "GPU-1", "1", "1", "1", "1", "1")}, noMemory, nil},
		"two GPUs":        {[]string{whole, dcgm("DCGM_FI_DEV_FB_USED", "101", "GPU-2", "1")}, manyGPUs, nil},
		"with another":    {[]string{whole, dcgm("DCGM_FI_DEV_FB_USED", "900", "GPU-1", "500")}, shared, nil},
		"MIG":             {[]string{strings.Replace(whole, `"gpu"`, `"GPU_I_ID":"3","gpu"`, 1)}, onMIG, nil},
		"by node":         {[]string{smi("n1:9835", "a", "5.24288e+08")}, "", func(r Run) bool { return r.Profile.Peak().MemMiB == 500 && r.From == "nvidia_gpu_exporter" }},
		"by longer name":  {[]string{smi("n1.cluster:9835", "a", "5.24288e+08")}, "", func(r Run) bool { return r.Profile.Peak().MemMiB == 500 }},
		"another node":    {[]string{smi("n2:9835", "a", "5.24288e+08")}, noSeries, nil},
		"which of two":    {[]string{smi("n1:9835", "a", "5.24288e+08"), smi("n1:9835", "b", "5.24288e+08")}, whichGPU, nil},
		"GR_ENGINE":       {[]string{whole, dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "101", "GPU-1", "0.25", "0.25", "0.25", "0.25", "0.25")}, "", func(r Run) bool { return r.Profile.Mean().GPU == 0.25 }},
		"GPU_UTIL before": {[]string{whole, dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "101", "GPU-1", "1", "1", "1", "1", "1"), dcgm("DCGM_FI_DEV_GPU_UTIL", "101", "GPU-1", "50", "50", "50", "50", "50")}, "", func(r Run) bool { return r.Profile.Mean().GPU == 0.5 }},
		"another time":    {[]string{line(`"__name__":"DCGM_FI_DEV_FB_USED","hpc_job":"101","UUID":"GPU-1"`, ten.Add(time.Hour), 10, "5")}, noSeries, nil},
	} {
		series, err := ReadPrometheus(strings.NewReader(matrix(c.series...)), "f")
		if err != nil {
			t.Fatal(name, err)
		}
		runs, skipped := Join(accounting(t)[:1], NewIndex(series, ""))
		if c.why != "" && (len(runs) != 0 || skipped[c.why] != 1) || c.why == "" && (len(runs) != 1 || !c.check(runs[0])) {
			t.Errorf("%s: %+v %v, want %q", name, runs, skipped, c.why)
		}
	}
}

// smi is nvidia_gpu_exporter's memory of job 101's ten minutes.
func smi(instance, uuid, bytes string) string {
	return line(fmt.Sprintf(`"__name__":"nvidia_smi_memory_used_bytes","instance":%q,"uuid":%q`, instance, uuid), ten, 120, bytes, bytes, bytes, bytes, bytes)
}

func TestBadPrometheus(t *testing.T) {
	good := dcgm("DCGM_FI_DEV_FB_USED", "1", "GPU-1", "5", "6")
	for text, want := range map[string]string{
		"":     "f: the file is empty",
		"[]":   "f:1: 1: it is no answer",
		"null": "it is no answer",
		"{}":   "there is no data",
		`{"status":"error","errorType":"bad_data","error":"invalid parameter"}`: "the server answered bad_data: invalid parameter",
		`{"status":"success","data":{"resultType":"vector","result":[]}}`:       "resultType is",
		matrix(good, strings.Replace(good, `"6"`, `"six"`, 1)):                  "f:1: 1: it is no answer",
		matrix(strings.Replace(good, `"6"`, `6`, 1)):                            "must be a quoted string",
		matrix(`{"metric":{},"values":[[2,"1"],[1,"1"]]}`):                      "not after",
		matrix(good)[:80]:                "unexpected EOF",
		matrix(good) + "x":               "f:4: 2",
		matrix(`{"metric":5}`):           "f:1",
		`{"status":"success","data":[]}`: "f:1",
		`{"status":"success","data":{"resultType":"matrix","result":{}}}`: "f:1",
	} {
		_, err := ReadPrometheus(strings.NewReader(text), "f")
		var at *table.Error
		if !errors.As(err, &at) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.90q: %v, want %q", text, err, want)
		}
	}
}

func TestServer(t *testing.T) {
	var asked []url.Values
	status, body := http.StatusOK, ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must.Equal(t, r.URL.Path, "/prom/api/v1/query_range", "path")
		if _, pw, _ := r.BasicAuth(); pw != "secret" {
			t.Errorf("password %q", pw)
		}
		asked = append(asked, r.URL.Query())
		if status == http.StatusOK || body[0] == '{' {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		if q := r.URL.Query().Get("query"); status == http.StatusOK && strings.Contains(q, `hpc_job=~`) && !strings.Contains(q, `"101|101"`) {
			fmt.Fprint(w, matrix())
			return
		}
		fmt.Fprint(w, body)
	}))
	defer srv.Close()
	base := must.Get(url.Parse(strings.Replace(srv.URL, "://", "://me:secret@", 1) + "/prom/"))(t)
	s := &Server{URL: base}
	jobs := accounting(t)
	body = matrix(dcgm("DCGM_FI_DEV_FB_USED", "101", "GPU-1", "500", "600", "600", "600", "600"))
	got, err := s.Job(context.Background(), &jobs[0])
	if err != nil || len(got) != 1 || len(asked) != 1 {
		t.Fatal(got, err, asked)
	}
	if q := asked[0]; q.Get("start") != fmt.Sprint(ten.Unix()) || q.Get("end") != fmt.Sprint(ten.Unix()+600) || q.Get("step") != "15" {
		t.Errorf("%v", q)
	}
	// A job that no series names is looked for by its node.
	body = matrix(smi("n1:9835", "a", "1e9"))
	if got, err := s.Job(context.Background(), &jobs[1]); err != nil || len(got) != 1 || len(asked) != 3 || !strings.Contains(asked[2].Get("query"), `instance=~"n1([.:].*)?"`) {
		t.Error(got, err, asked)
	}
	long := jobs[0]
	long.End = long.Start.Add(30 * 24 * time.Hour)
	if _, err := s.Job(context.Background(), &long); err != nil || asked[3].Get("step") != "5063" {
		t.Error(err, asked[3])
	}
	hostile := jobs[1]
	hostile.Nodes, hostile.ID = `n1"} or vector(1) #`, `1"|.*`
	if got, err := s.Job(context.Background(), &hostile); err != nil || len(got) != 0 || len(asked) != 5 || strings.Contains(asked[4].Get("query"), `"1"|.*`) {
		t.Error(got, err, asked[4])
	}
	for st, b := range map[int]string{422: `{"status":"error","errorType":"execution","error":"too many samples"}`, 502: "<html>", 200: "<html>"} {
		status, body = st, b
		_, err := s.Job(context.Background(), &jobs[0])
		if err == nil || strings.Contains(err.Error(), "secret") || st == 422 && !strings.Contains(err.Error(), "too many samples") {
			t.Errorf("%d: %v", st, err)
		}
	}
	srv.Close()
	if _, err := s.Job(context.Background(), &jobs[0]); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

func TestProfilesJoinRuns(t *testing.T) {
	jobs := accounting(t)
	runs, _ := FromSacct(jobs)
	again := runs[0]
	twice := *again.Profile
	twice.DurationS, twice.PeriodS = 1200, 1200
	again.Profile = &twice
	got := Profiles([]Run{runs[0], again, runs[1]}, func(j *Job) appid.App {
		if j.ID == "102" {
			return appid.App{}
		}
		return appid.Identify("", []byte("./lj -n 5"), "")
	})
	if len(got) != 2 || got[0].Profile.App != "a_b" {
		t.Fatalf("%+v", got)
	}
	lj := got[1]
	if lj.App.Family == "" || lj.Profile.DurationS != 900 || math.Abs(lj.Profile.DurationSD-300*math.Sqrt2) > 1e-9 || lj.Profile.Peak().MemMiB != 6144 || !strings.Contains(lj.Profile.Source, "(jobs: 2)") {
		t.Errorf("%+v %+v", lj, lj.Profile)
	}
}

func FuzzReadSacct(f *testing.F) {
	if text, err := os.ReadFile("testdata/sacct.txt"); err == nil {
		f.Add(string(text))
	}
	f.Add("JobIDRaw|JobName|User|State|Start|End|AllocTRES|\r\n1|a|b|u|COMPLETED|1|2|gres/gpu=1|\r\n1.0||||||\n")
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := ReadSacct(strings.NewReader(text), "f", time.UTC)
		var at *table.Error
		if err != nil && !errors.As(err, &at) {
			t.Errorf("%T %v", err, err)
		}
		runs, _ := FromSacct(jobs)
		for _, in := range Profiles(runs, ByName) {
			if err := in.Profile.Validate(); err != nil || in.Profile.Peak().MemMiB <= 0 {
				t.Errorf("%+v: %v", in.Profile, err)
			}
		}
	})
}

func FuzzReadPrometheus(f *testing.F) {
	f.Add(matrix(dcgm("DCGM_FI_DEV_FB_USED", "101", "GPU-1", "5", "6", "NaN", "7", "8"), smi("n1:9", "u", "1e9")))
	f.Add(`{"data":{"result":[{"metric":{"__name__":"nvidia_smi_memory_used_bytes"},"values":[[1e300,"1"],[9223372036854775,"-0"]]}]}}`)
	job := Job{ID: "101", RawID: "101", Nodes: "n1", State: "COMPLETED", Start: ten, End: ten.Add(10 * time.Minute), GPUs: 1}
	f.Fuzz(func(t *testing.T, text string) {
		series, err := ReadPrometheus(strings.NewReader(text), "f")
		var at *table.Error
		if err != nil && !errors.As(err, &at) {
			t.Errorf("%T %v", err, err)
		}
		runs, _ := Join([]Job{job}, NewIndex(series, ""))
		for _, r := range runs {
			if err := r.Profile.Validate(); err != nil || r.Profile.Peak().MemMiB <= 0 {
				t.Errorf("%+v: %v", r.Profile, err)
			}
		}
	})
}
