package gpusim

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The C library and Go must mean the same bytes.
func TestLayoutIsTheHeaders(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	bin := filepath.Join(t.TempDir(), "offsets")
	if out, err := exec.Command("gcc", "-o", bin, "testdata/offsets.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]reflect.Type{
		"sim_header": reflect.TypeFor[fileHeader](), "sim_point": reflect.TypeFor[point](), "sim_slot": reflect.TypeFor[slot](),
		"sim_member": reflect.TypeFor[member](), "sim_change": reflect.TypeFor[change](), "sim_dyn": reflect.TypeFor[dyn](),
		"sim_fault": reflect.TypeFor[fault](), "sim_instance": reflect.TypeFor[instance](), "sim_device": reflect.TypeFor[deviceRec](),
	}
	// C names without underscores are the Go names in small letters, but for these.
	renamed := map[string]string{"occupieds": "occupied"}
	seen := 0
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var name string
		var n int
		switch line := sc.Text(); {
		case strings.HasPrefix(line, "constants"):
			want := fmt.Sprintf("constants %d %d %d %d %d %d %d %d", version, headerSize, MaxDevices, Slots, MaxPoints, maxFaults, MaxInstances, maxChanges)
			if line != want {
				t.Errorf("C has %q, Go %q", line, want)
			}
		case strings.HasPrefix(line, "figures"):
			if want := fmt.Sprintf("figures %d", len(figures)); line != want {
				t.Errorf("C has %q, Go %q", line, want)
			}
		case strings.Contains(line, " size "):
			_, _ = fmt.Sscanf(line, "%s size %d", &name, &n)
			if ty := types[name]; ty == nil || int(ty.Size()) != n {
				t.Errorf("%s: C's size is %d, Go's %v", name, n, ty.Size())
			}
		default:
			_, _ = fmt.Sscanf(line, "%s %d", &name, &n)
			st, fd, _ := strings.Cut(name, ".")
			fd = strings.ReplaceAll(fd, "_", "")
			if r, ok := renamed[fd]; ok {
				fd = r
			}
			f, ok := types[st].FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, fd) })
			if !ok {
				t.Errorf("%s: not in Go", name)
				continue
			}
			if int(f.Offset) != n {
				t.Errorf("%s: C has it at %d, Go at %d", name, n, f.Offset)
			}
			seen++
		}
	}
	if seen < 70 {
		t.Errorf("only %d fields compared", seen)
	}
}
