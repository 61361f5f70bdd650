package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

func TestHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	agent.NewMetrics(reg)
	sick := errors.New("gpu 3: the GPU is lost")
	for _, c := range []struct {
		health       error
		request, has string
		want         int
	}{
		{nil, "GET /-/healthy", "healthy", http.StatusOK},
		{nil, "GET /-/ready", "ready", http.StatusOK},
		{nil, "POST /-/ready", "", http.StatusMethodNotAllowed},
		{sick, "GET /-/healthy", "gpu 3", http.StatusServiceUnavailable},
		{sick, "GET /-/ready", "gpu 3", http.StatusServiceUnavailable},
		{sick, "GET /metrics", "gpuprof_jobs 0", http.StatusOK}, // wanted all the more
	} {
		method, path, _ := strings.Cut(c.request, " ")
		w := httptest.NewRecorder()
		handler(reg, func() error { return c.health }).ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
		must.Equal(t, w.Code, c.want, "%s: %s", c.request, w.Body)
		must.Contain(t, w.Body.String(), c.has, c.request)
	}
}

// manual is what gpuprof(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/gpuprof.yaml**
: Settings, each with its default and its meaning. controller must be set.

**/run/slurmbridge/jobs**
: The jobs on this node, written by the hooks.

**/var/spool/slurmbridge**
: Records that wait for the controller.

# SEE ALSO

**gpuprof.yaml**(5), **slurmbridge-node.yaml**(5), **slurmbridge**(8)
`

func TestManualOfTheAgent(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, io.Discard), manual) }

// etc/gpuprof.yaml, from which the defaults come, describes every setting; an environment and flags overrule it.
func TestSettingsHaveTheirDefaultsInEtc(t *testing.T) {
	root := newRoot(io.Discard, io.Discard)
	serve, _, err := root.Find([]string{"serve"})
	must.OK(t, err)
	must.OK(t, serve.ParseFlags([]string{"--config", "../../../etc/gpuprof.yaml", "--period", "2s"}))
	t.Setenv("GPUPROF_PERIOD", "3s")
	t.Setenv("GPUPROF_SPOOL_MIB", "7")
	got := must.Get(load(serve))(t)
	if got.Period != 2*time.Second || got.SpoolMiB != 7 || got.Listen != ":9798" ||
		got.HookSettings != prolog.DefaultSettings {
		t.Errorf("%+v", got)
	}
	means := map[string]string{}
	for _, s := range settings.Documented(etc.Agent) {
		means[s.Name] = s.Doc
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		if key := f.Tag.Get("mapstructure"); len(means[key]) < 20 {
			t.Errorf("the file says of %s: %q", key, means[key])
		}
	}
	t.Setenv("GPUPROF_SPOOL_MIB", "0")
	must.Equal(t, fmt.Sprint(must.Err(load(serve))), "GPUPROF_SPOOL_MIB is 0, but takes 1 to 1048576")
}

// Each controller gets every record: it waits for each of them, in a folder of its own.
func TestSeveralControllers(t *testing.T) {
	v := &config{Controller: "http://one:1, http://two:2", SpoolMiB: 16, Spool: filepath.Join(t.TempDir(), "spool")}
	all := must.Get(newWays(v, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)))(t)
	must.Equal(t, [2]string{all[0].sender.URL, all[1].sender.URL}, [2]string{"http://one:1", "http://two:2"})
	must.OK(t, all[0].Open(), all[1].Open())
	now := time.Now()
	must.OK(t, all.add(&gpuprof.Record{JobID: 7, User: "ann", Node: "n1", Start: now.Add(-time.Minute), End: now}))
	must.Equal(t, [2]int{all[0].Waiting(), all[1].Waiting()}, [2]int{1, 1})
	must.Equal(t, all[1].Dir, filepath.Join(v.Spool, "for-two-2"))
	v.Controller += ","
	must.Fail(t, must.Err(newWays(v, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))), "", "an empty address")
}

// simulatedLibrary compiles the simulated GPU's NVML.
func simulatedLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, built.Into(dir, built.Library))
	return filepath.Join(dir, built.Library)
}

// On a node with NVIDIA's own library and no driver each command says so in one sentence and ends, and leaves nothing
// behind.
func TestNoDriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("a driver is loaded here")
	}
	libraries := map[string]string{"none": "/nonexistent/libnvidia-ml.so.1"}
	t.Run("NVIDIA's own libraries", func(t *testing.T) {
		for _, d := range nvidia.Fetched(t) {
			libraries[d.Name] = filepath.Join(d.Libraries(t), "libnvidia-ml.so.1")
		}
	})
	for name, library := range libraries {
		for command, args := range map[string][]string{
			"info": nil, "serve": {"--controller", "http://127.0.0.1:1", "--listen", "", "--run-dir", "run", "--spool", "spool"},
		} {
			c := exec.Command("/proc/self/exe", append([]string{command, "--nvml-library", library}, args...)...)
			c.Dir, c.Env = t.TempDir(), append(os.Environ(), asAgent+"=1")
			out, _ := c.CombinedOutput()
			want := "gpuprof: no GPU can be read: NVIDIA's driver is installed on this machine, but not loaded\n"
			if name == "none" {
				want = "gpuprof: no GPU can be read: the library of NVIDIA's driver (libnvidia-ml.so.1) is not on this machine, " +
					"or not where the loader looks\n"
			}
			if left, err := os.ReadDir(c.Dir); string(out) != want || c.ProcessState.ExitCode() != 1 || err != nil ||
				len(left) > 0 {
				t.Errorf("%s, %s: status %v, left %v: %s", name, command, c.ProcessState, left, out)
			}
		}
	}
}

// The command prints what the library says of each GPU.
func TestInfoSaysWhatTheLibrarySays(t *testing.T) {
	so, state := simulatedLibrary(t), filepath.Join(t.TempDir(), "state")
	must.OK(t, gpusim.Create(state, gpusim.Config{Model: "a100", GPUs: 2, Uncut: []int{0}, Instances: []string{"1g.5gb"}}))
	t.Setenv(gpusim.StateEnv, state)
	var out strings.Builder
	root := newRoot(&out, io.Discard)
	root.SetArgs([]string{"info", "--nvml-library", so})
	must.OK(t, root.Execute())
	var got []nvml.Device
	must.OK(t, json.Unmarshal([]byte(out.String()), &got))
	lib := must.Get(nvml.Open(so))(t)
	defer lib.Close()
	if diff := cmp.Diff(lib.Devices(), got, cmpopts.IgnoreUnexported(nvml.Device{}, nvml.Instance{}),
		cmp.Comparer(func(a, b nvml.Answers) bool { return fmt.Sprint(a) == fmt.Sprint(b) })); diff != "" {
		t.Error(diff)
	}
}
