package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// On a V100 a job is held to what the controller gave it: it runs as it did, and one that
// takes more is refused alone. A job that the controller can't tell of isn't held. Nothing
// is set in node.yaml but the controller.
func TestMemoryLimitByProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: jobs of other users")
	}
	run, err := os.MkdirTemp("", "sbm") // sockets need a short path, and users one they reach
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	in := func(name string) string { return filepath.Join(run, name) }
	build := exec.Command("go", "build", "-o", in("bin")+"/", ".", "../../../contrib/testbed/gpusim/cmd/gpusim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	known, _ := apps.ByName("vgg16")
	need := known.Peak().MemMiB
	limit := int64(known.NeedMiB(.1))
	m := mungetest.Start(t, mungetest.Key, 0)
	asker := &httpapi.Asker{
		Header: m.Header(), Hint: m.Hint,
		Decode:  func(ctx context.Context, _, cred string) (*credential.Credential, error) { return m.Decode(ctx, cred) },
		Trusted: func(uid uint32) bool { return uid == 0 },
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+httpapi.MemoryPath, &httpapi.Memory{Asker: asker, Limit: func(_ context.Context, ref, user string) (int64, error) {
		switch {
		case ref == "8":
			return 0, errors.New("no journal")
		case user != "nobody":
			return 0, nil
		}
		return limit, nil
	}})
	controller := httptest.NewServer(mux)
	defer controller.Close()
	state, control := in("state"), in("bin/nvidia-cuda-mps-control")
	for _, err := range []error{
		os.Chmod(run, 0o755), os.Symlink("gpusim", control), os.Symlink("gpusim", in("bin/nvidia-cuda-mps-server")),
		os.WriteFile(in("node.yaml"), fmt.Appendf(nil, "run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\ncontroller: %s\nmunge_socket: %s\n", run, control, state, controller.URL, m.Socket), 0o644),
		exec.Command(in("bin/gpusim"), "init", "--state", state, "--model", "v100", "--scale", "20").Run(),
		prolog.Dir(run).WriteCards([]prolog.Card{{Arch: "volta", MemMiB: 16160}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	call := func(kind, id string, as *syscall.SysProcAttr) (out, stderr string) {
		t.Helper()
		var o, e bytes.Buffer
		cmd := exec.Command(in("bin/slurmbridge-hook"), kind, "--settings", in("node.yaml"))
		cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = job("SLURM_JOB_ID="+id), "/", as, &o, &e
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return o.String(), e.String()
	}
	if _, said := call("prolog", "7", nil); said != "" {
		t.Error(said)
	}
	if _, said := call("prolog", "8", nil); strings.Count(said, "\n") != 1 || !strings.Contains(said, "job 8 goes without a memory limit") {
		t.Errorf("where the controller fails it says %q, want one line", said)
	}
	defer func() {
		for _, id := range []string{"7", "8"} {
			call("epilog", id, nil)
		}
		if left, _ := filepath.Glob(in("mps/gpu0/limits.json")); len(left) > 0 {
			t.Error("left:", left)
		}
	}()
	var vars [2][]string
	for i, id := range []string{"7", "8"} {
		out, said := call("taskprolog", id, user)
		want := fmt.Sprintf("export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM\n", limit)
		if said != "" || strings.Contains(out, want) != (id == "7") || strings.Contains(out, "PINNED") != (id == "7") {
			t.Errorf("job %s: %q, %q; want %q of job 7 only", id, out, said, want)
		}
		vars[i] = []string{"GPUSIM_STATE=" + state}
		for line := range strings.Lines(out) {
			vars[i] = append(vars[i], strings.TrimPrefix(strings.TrimSpace(line), "export "))
		}
	}
	start := func(vars []string, args ...string) (end func() (bool, string)) {
		var out bytes.Buffer
		cmd := exec.Command(in("bin/gpusim"), append([]string{"run", "vgg16", "--duration-scale", "0.05"}, args...)...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = vars, "/", user, &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() (bool, string) { err := cmd.Wait(); return err == nil, out.String() }
	}
	neighbour := start(vars[1], "--mem-mib", fmt.Sprint(need*.5), "--duration-scale", "0.5") // there is room for all of them
	if ok, said := start(vars[0])(); !ok || !strings.Contains(said, `"mps":true`) {
		t.Errorf("as it ran alone: %s", said)
	}
	if ok, said := start(vars[0], "--mem-mib", fmt.Sprint(need*1.2))(); ok || !strings.Contains(said, "memory") {
		t.Errorf("it took more than its limit: %s", said)
	}
	if ok, said := neighbour(); !ok {
		t.Errorf("its neighbour: %s", said)
	}
}
