package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// everything calls all there is of the library at so, and is a program's exit
// status. A call of a function that isn't there ends the process before.
func everything(so string) int {
	lib, err := Open(so)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer lib.Close()
	for i := range lib.Devices() {
		d := &lib.Devices()[i]
		_, errs := call(lib, i)
		for _, err := range errs {
			if err != nil && !errors.Is(err, ErrNotSupported) {
				fmt.Println(err)
			}
		}
		for k := range d.MIG.Instances {
			in := d.Instance(k)
			_, _ = in.Read(Memory)
			_, _ = in.Processes()
			_, _ = in.Activity()
			_, _ = in.Activity()
		}
		fmt.Println(i, d.UUID, d.Answers)
	}
	fmt.Println("done")
	return 0
}

// call reads every figure of GPU i.
func call(lib *Library, i int) (Sample, []error) {
	d := &lib.Devices()[i]
	s, err1 := d.Sample()
	_, err2 := d.Read(Energy)
	_, err3 := d.Processes()
	_, err4 := d.ProcessUtilisation(time.Time{})
	_, err5 := d.Samples(time.Time{})
	d.gpu.seen = Activity{} // of another call: this one reads
	_, err6 := d.Activity()
	if errors.Is(err6, ErrNotYet) {
		time.Sleep(time.Millisecond)
		_, err6 = d.Activity()
	}
	return s, []error{err1, err2, err3, err4, err5, err6}
}

// needed are the functions no driver lacks: without them there is no NVML.
var needed = []string{"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}

// An old driver's library lacks functions: whichever it is, what is missing isn't
// called. The linker of each process binds by name once and for all, so each
// library has a process of its own.
func TestMissingSymbols(t *testing.T) {
	dir := built(t)
	state := filepath.Join(t.TempDir(), "state")
	if err := gpusim.Create(state, gpusim.Config{Model: "h200", Instances: []string{"1g.18gb"}}); err != nil {
		t.Fatal(err)
	}
	used := symbolsInUse(t)
	if len(used) < 25 {
		t.Fatalf("only %d functions of NVML found in the package", len(used))
	}
	try := func(name, script string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Error(err)
			return ""
		}
		so, err := link(dir, name+".so", "-Wl,--version-script="+file)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer os.Remove(so)
		exe, err := os.Executable()
		if err != nil {
			t.Error(err)
			return ""
		}
		c := exec.Command(exe)
		c.Env = append(os.Environ(), "NVML_TEST_EVERYTHING="+so, gpusim.StateEnv+"="+state)
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "done") {
			t.Errorf("without %s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, 3)
	for _, sym := range used {
		if slices.Contains(needed, sym) {
			continue
		}
		// Neither it nor its later versions.
		wg.Go(func() {
			free <- struct{}{}
			try(sym, "{ local: "+sym+"; "+sym+"_v*; };")
			<-free
		})
	}
	wg.Wait()
	out := try("all", "{ global: "+strings.Join(needed, "; ")+"; local: *; };")
	if want := " " + fmt.Sprint(Answers{}) + "\n"; !strings.Contains(out, want) {
		t.Errorf("nothing is there, and yet: %s", out)
	}
}

// symbolsInUse are the functions that this package calls, by the names under
// which it asks whether they are there.
func symbolsInUse(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(nvml[A-Z]\w+?)(_v\d)?"`).FindAllStringSubmatch(string(src), -1) {
			if !slices.Contains(out, m[1]) {
				out = append(out, m[1])
			}
		}
	}
	return out
}
