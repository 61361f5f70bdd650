package appid

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestIdentify(t *testing.T) {
	script := "#!/bin/bash\n#SBATCH --time=10\n# my job\nmodule load lammps\n\nsrun  -n 1 lmp -in in.lj   -sf gpu\n"
	a := Identify("", []byte(script), "")
	if !strings.HasPrefix(a.Key, "lmp-") || a.Name != "lmp" {
		t.Errorf("%+v", a)
	}
	for name, same := range map[string]string{
		"another time limit": strings.Replace(script, "10", "99", 1),
		"another comment":    strings.Replace(script, "my job", "your job", 1),
		"other white space":  strings.ReplaceAll(script, "  ", " "),
		"a folded line":      strings.Replace(script, "-n 1 lmp", "-n 1 \\\n  lmp", 1),
		"it says hello":      strings.Replace(script, "module", "echo hello $SLURM_JOB_ID\nmodule", 1),
	} {
		if b := Identify("", []byte(same), ""); b.Key != a.Key {
			t.Errorf("%s: %+v, want %+v", name, b, a)
		}
	}
	for name, other := range map[string]string{
		"another input":   strings.Replace(script, "in.lj", "in.eam", 1),
		"another program": strings.Replace(script, "lmp", "gmx", 1),
	} {
		if b := Identify("", []byte(other), ""); b.Key == a.Key {
			t.Errorf("%s: the same key %s", name, b.Key)
		}
	}
	if b := Identify("mine", []byte(script), ""); b.Key != "mine" {
		t.Errorf("its owner's name became %s", b.Key)
	}
	if b := Identify("", nil, ""); b.Key != "" {
		t.Errorf("no script has key %s", b.Key)
	}
	if b := Identify("", []byte("python3 train.py --model resnet50"), ""); b.Name != "train" {
		t.Errorf("name %s, want train", b.Name)
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add([]byte("#!/bin/sh\nsrun ./a.out\n"))
	f.Add([]byte("\\\n\\\n\xff\x00'\"../../etc"))
	f.Add([]byte("export N=4k\nsrun -n 2 --mpi=pmix singularity exec --nv i.sif bash -c 'python -m a -n1000 64x64 in_5.dat >o' &"))
	f.Add([]byte("a $(b `c ${d 'e \"f\x01-n 1e999 0x0 .5 5. 1x 1xx2"))
	f.Fuzz(func(t *testing.T, script []byte) {
		a := Identify("", script, "")
		for _, key := range []string{a.Key, a.Family} {
			if strings.ContainsAny(key, " /\n\"'\\") || len(key) > 64 {
				t.Errorf("key %q", key)
			}
		}
		if len(a.Sizes) > maxSizes || a.Family == "" && a.Sizes != nil {
			t.Errorf("family %q, %d sizes", a.Family, len(a.Sizes))
		}
		for _, s := range a.Sizes {
			if !(s.Value > 0) || math.IsInf(s.Value, 0) || len(s.Name) > 40 || strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("size %+v", s)
			}
		}
		if b := Identify("", script, ""); !reflect.DeepEqual(a, b) {
			t.Errorf("%+v, and then %+v", a, b)
		}
	})
}
