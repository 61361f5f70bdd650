package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// BenchmarkServe is gpuprof serve at 1 Hz on a node with 8 simulated GPUs and 64 jobs,
// each an application of its own below a step. It tells the share of one core, the
// resident memory, readings a second of a GPU, how many jobs had their memory told
// apart, and the size of a record in the spool. The simulated driver's time is in it.
func BenchmarkServe(b *testing.B) {
	const gpus, each, warm, seconds = 8, 8, 70, 60
	bin, err := programs()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	b.Setenv("GPUSIM_STATE", in("state"))
	must := func(program string, args ...string) {
		b.Helper()
		if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
			b.Fatalf("%s: %v: %s", program, err, out)
		}
	}
	must("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", in("gpuprof"), "../cmd/gpuprof")
	must(filepath.Join(bin, "gpusim"), "init", "--gpus", strconv.Itoa(gpus), "--model", "h200")
	must("cp", "/bin/bash", in("slurmstepd"))
	jobs := prolog.Dir(in("run"))
	for _, d := range []string{jobs.Jobs(), jobs.Ended()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			b.Fatal(err)
		}
	}
	free := httptest.NewServer(nil)
	listen := free.Listener.Addr().String()
	free.Close()
	serve := exec.Command(in("gpuprof"), "serve", "--run-dir", string(jobs), "--spool", in("spool"), "--controller",
		"http://127.0.0.1:1",
		"--nvml-library", filepath.Join(bin, "libnvidia-ml.so.1"), "--listen", listen, "--node", "n1")
	begin := func(c *exec.Cmd) {
		b.Helper()
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL); _ = c.Wait() })
	}
	begin(serve)
	rng := rand.New(rand.NewPCG(1, 1))
	for id := range gpus * each {
		// Use that never rests, so that the pace stays at one reading a period.
		p := &rlcore.Profile{App: "a", PeriodS: 0.5}
		for range 512 {
			p.Series = append(p.Series, rlcore.Use{
				GPU: rng.Float64(), Core: rng.Float64() / 2, MemMiB: 15000 * rng.Float64(),
				PCIeMBps: 1e4 * rng.Float64(),
			})
		}
		p.DurationS = p.PeriodS * float64(len(p.Series))
		body, err := json.Marshal(p)
		if err != nil {
			b.Fatal(err)
		}
		profile := in(fmt.Sprintf("%d.profile", id))
		if err := os.WriteFile(profile, body, 0o600); err != nil {
			b.Fatal(err)
		}
		app := exec.Command(in("slurmstepd"), "-c", `"$0" run a --profile "$1" & wait`, filepath.Join(bin, "gpusim"), profile)
		app.Args[0] = fmt.Sprintf("slurmstepd: [%d.batch]", id+1)
		app.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+strconv.Itoa(id%gpus))
		begin(app)
		j := &prolog.Job{
			JobID: int64(id + 1), UID: 1000, User: "ann", Comment: "app=resnet50", GPUs: []int{id % gpus},
			UUIDs:   uuids(b, jobs, id%gpus),
			Percent: 100 / each, Start: time.Now(),
		}
		if err := jobs.Begin(j); err != nil {
			b.Fatal(err)
		}
	}
	metric := func(name string) float64 {
		resp, err := http.Get("http://" + listen + "/metrics")
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
		if err != nil || m == nil {
			b.Fatalf("no %s: %v %s", name, err, text)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
	time.Sleep(warm * time.Second)
	const samples, cpu = `gpuprof_samples_total{result="ok"}`, "process_cpu_seconds_total"
	from, n, used := time.Now(), metric(samples), metric(cpu)
	for b.Loop() {
		time.Sleep(seconds * time.Second)
	}
	over := time.Since(from).Seconds()
	b.ReportMetric(100*(metric(cpu)-used)/over, "%core")
	b.ReportMetric(metric("process_resident_memory_bytes")/(1<<20), "MiB")
	b.ReportMetric((metric(samples)-n)/over/gpus, "readings/s")
	for id := range gpus * each {
		if _, err := jobs.End(int64(id+1), time.Now(), "0:0"); err != nil {
			b.Fatal(err)
		}
	}
	records := []string{}
	for range 200 {
		if records, err = filepath.Glob(in("spool", "*.json")); err == nil && len(records) == gpus*each {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	size, apart := 0, 0
	for _, path := range records {
		body, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		var r gpuprof.Record
		if err := json.Unmarshal(body, &r); err != nil {
			b.Fatal(err)
		}
		size += len(body)
		if r.Samples > 0 && !slices.Contains(r.Mixed, "mem") && r.Peak.MemMiB > 0 {
			apart++
		} else if apart == 0 {
			b.Logf("%s: %s", path, strings.Join(r.Mixed, " "))
		}
	}
	if len(records) != gpus*each {
		b.Fatalf("%d records", len(records))
	}
	b.ReportMetric(float64(size)/float64(len(records)), "B/record")
	b.ReportMetric(float64(apart), "apart")
}
