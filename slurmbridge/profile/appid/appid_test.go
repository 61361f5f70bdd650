package appid

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestUnwrap(t *testing.T) {
	for line, want := range map[string]string{
		"lmp -in in.lj": "lmp -in in.lj",
		"srun -n 4 --mpi=pmix --cpu-bind cores ./lmp -in in.lj":                                "lmp -in in.lj",
		"srun --exclusive -N1 lmp":                                                             "lmp",
		"mpirun -np 4 --bind-to core -x OMP_NUM_THREADS --mca btl ^tcp gmx_mpi mdrun -s a.tpr": "gmx_mpi mdrun -s a.tpr",
		"mpiexec.hydra -ppn 2 -genv I_MPI_PIN 1 /opt/bin/vasp":                                 "vasp",
		"singularity exec --nv -B /data:/data img.sif python -u train.py --epochs 3":           "train.py --epochs 3",
		"apptainer -q run --nv docker://org/hoomd:4.2 --steps 100":                             "hoomd:4.2 --steps 100",
		"apptainer run --nv img.sif":                                                           "img.sif",
		"conda run -n env --no-capture-output python -m pkg.train -b 64":                       "pkg.train -b 64",
		"env -u X CUDA_VISIBLE_DEVICES=0 FOO=bar ./a.out 7":                                    "a.out 7",
		"FOO=bar BAZ=1 ./a.out 7":                                                              "a.out 7",
		"/usr/bin/time -v -o t.log numactl --cpunodebind=0 -m 0 ./a.out 7":                     "a.out 7",
		`bash -c 'cd /x && srun -n 2 ./a.out "7 8"'`:                                           "a.out 7 8",
		"bash -l run.sh 5":                     "run.sh 5",
		"python3.11 -W ignore -X dev train.py": "train.py",
		"torchrun --standalone --nproc_per_node=1 --master_port 1 train.py --b 2": "train.py --b 2",
		"python -m torch.distributed.run --nproc-per-node 1 sub/train.py":         "train.py",
		"python -O -c 'print(1)'":                  "python print(1)",
		"srun python -m mpi4py run.py 9":           "run.py 9",
		"timeout -k 5 3600 ./a.out":                "a.out",
		"nsys profile -o rep --stats true ./a.out": "a.out",
		"srun singularity exec --nv i.sif bash -c 'exec python train.py --n 5' 2>&1 >log": "train.py --n 5",
		"module":                       "module",
		"srun":                         "srun",
		"srun --":                      "srun",
		"bash -c ''":                   "bash",
		"singularity pull x":           "singularity",
		`bash -c 'bash -c "bash -c x"`: "x",
	} {
		c := commands(line)
		program, args, own := unwrap(c[len(c)-1])
		must.Equal(t, strings.Join(append([]string{program}, args...), " "), want, line)
		if len(own) == 0 {
			t.Errorf("%s: no words before the arguments", line)
		}
	}
}

func TestCommands(t *testing.T) {
	for line, want := range map[string]string{
		`a "b c" 'd "e' f\ g`:        `[[a b c d "e f g]]`,
		`a && b|c; (d &) || e # f`:   `[[a] [b] [c] [d] [e]]`,
		`a >out 2>>err <in b &>all`:  `[[a b in]]`,
		`a <<EOF | b <<<"x y" 0<&3`:  `[[a] [b x y]]`,
		`a $(b c; d) ${e:-f g} "h`:   `[[a $(b c; d) ${e:-f g} h]]`,
		`a x2>y`:                     `[[a x2]]`,
		`'' "unbalanced`:             `[[ unbalanced]]`,
		"a `b ; c` d#e":              "[[a `b ; c` d#e]]",
		``:                           `[]`,
		`a \`:                        `[[a ]]`,
		`$(`:                         `[[$(]]`,
		`;;|&`:                       `[]`,
		`a 2>&1 b`:                   `[[a b]]`,
		`if [ $x = 1 ]; then b ; fi`: `[[if [ $x = 1 ]] [then b] [fi]]`,
	} {
		must.Equal(t, fmt.Sprint(commands(line)), want, line)
	}
}

func sizesOf(a App) string {
	var out []string
	for _, s := range a.Sizes {
		out = append(out, fmt.Sprintf("%s=%g", s.Name, s.Value))
	}
	return strings.Join(out, " ")
}

// Each line is a family with the scripts that belong to it and their sizes; and
// scripts that don't.
func TestFamily(t *testing.T) {
	for _, c := range []struct {
		script, sizes string
		same          map[string]string // relative → its sizes
		other         []string
	}{
		{
			"srun -n 1 ./lmp -in in.lj -var x 10 --steps=1000", "argument 3=10 --steps=1000",
			map[string]string{
				"srun -n 1 ./lmp -in in.lj -var x 20 --steps=2k": "argument 3=20 --steps=2000",
			},
			[]string{
				"srun -n 2 ./lmp -in in.lj -var x 10 --steps=1000", "srun -n 1 ./lmp -in in.eam -var x 10 --steps=1000",
				"srun -n 1 ./lmp -in in.lj -var y 10 --steps=1000", "srun -n 1 ./gmx -in in.lj -var x 10 --steps=1000",
				"srun -n 1 ./lmp -in in.lj -var x 10 --stops=1000",
			},
		},
		{
			"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 1 data/water_1536k.tpr",
			"N=4096 --batch-size=64 file water_#.tpr=1.536e+06",
			map[string]string{
				"export N=8Ki\npython train.py --batch-size 128 --lr 1e-3 --seed 7 -o run2.log --gpus 1 data/water_96k.tpr": "N=8192 --batch-size=128 file water_#.tpr=96000",
			},
			[]string{
				"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 2 data/water_1536k.tpr",
				"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 1 data/ice_1536k.tpr",
			},
		},
		{"./cufft 64x64x64 -n1000 batch=2G", "argument 1=262144 -n=1000 batch=2e+09", map[string]string{"./cufft 128x64x64 -n500 batch=1G": "argument 1=524288 -n=500 batch=1e+09"}, nil},
		{"python t.py --model resnet50", "", map[string]string{"python  t.py --model resnet50 # again": ""}, []string{"python t.py --model resnet152"}},
		{"python t.py -c resnet50.yaml", "", nil, []string{"python t.py -c resnet152.yaml"}},
		{"a.out part_007.dat h2o.xyz x_20240131.nc", "", map[string]string{"a.out part_011.dat h2o.xyz x_20240131.nc": ""}, []string{"a.out part_007.dat h3o.xyz x_20240131.nc", "a.out part_007.dat h2o.xyz x_20240201.nc"}},
		{"cd /scratch/run1\n./a.out 5", "argument 1=5", map[string]string{"cd /scratch/run22\n./a.out 6 >log6": "argument 1=6"}, []string{"cd /scratch/x1\n./a.out 5"}},
		{"./a.out 0 -5 -1 abc 12:30:00", "", nil, []string{"./a.out 1 -5 -1 abc 12:30:00"}},
	} {
		a := Identify("", []byte(c.script), "")
		if a.Family == "" || sizesOf(a) != c.sizes {
			t.Errorf("%s: family %q, sizes %q, want %q", c.script, a.Family, sizesOf(a), c.sizes)
		}
		for script, sizes := range c.same {
			b := Identify("", []byte(script), "")
			if b.Family != a.Family || sizesOf(b) != sizes {
				t.Errorf("%s: family %s, want %s; sizes %q, want %q", script, b.Family, a.Family, sizesOf(b), sizes)
			}
		}
		for _, script := range c.other {
			if b := Identify("", []byte(script), ""); b.Family == a.Family {
				t.Errorf("%s is held to be of the family of %s", script, c.script)
			}
		}
	}
	for _, script := range []string{"", "cd /x\nmodule load a", "./a.out" + strings.Repeat(" 7", maxSizes+1)} {
		if a := Identify("", []byte(script), ""); a.Family != "" || a.Sizes != nil {
			t.Errorf("%.20q has family %s", script, a.Family)
		}
	}
	if a := Identify("mine", []byte("./a.out 5"), ""); a.Family != "" {
		t.Errorf("what its owner named has family %s", a.Family)
	}
}

// One script with other arguments is another application, of the same family if only sizes differ.
func TestArguments(t *testing.T) {
	const script = "python train.py $1 $2"
	key := func(args string) App { return Identify("", []byte(script), args) }
	a := key("~0a1b2c3d 128 --epochs=90")
	if a.Name != "train" || !strings.HasPrefix(a.Key, "train-") || sizesOf(a) != "argument 2=128 --epochs=90" {
		t.Errorf("%+v", a)
	}
	if b := key("~0a1b2c3d 256 --epochs=90"); b.Key == a.Key || b.Family != a.Family {
		t.Errorf("another size: %+v", b)
	}
	// Files in a row are alike.
	if one, two := key("~abcdefgh_007.f"), key("~abcdefgh_011.f"); one.Family == "" || one.Family != two.Family || len(one.Sizes) != 0 {
		t.Errorf("%+v, %+v", one, two)
	}
	if one, two := key("N=~abcdefgh_64.f"), key("N=~abcdefgh_128.f"); one.Family != two.Family || sizesOf(one) != "file ~abcdefgh_#.f=64" {
		t.Errorf("%+v, %+v", one, two)
	}
	for _, args := range []string{"~ffffffff 128 --epochs=90", "128 --epochs=90", ""} {
		if b := key(args); b.Key == a.Key || b.Family == a.Family {
			t.Errorf("%q: %+v", args, b)
		}
	}
	if b := Identify("mine", []byte(script), "128"); b.Key != "mine" {
		t.Errorf("its owner's name became %s", b.Key)
	}
}

// Profiles are found by keys: one that changes with a release loses its profile.
func TestKeysStay(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/bash\n#SBATCH --time=10\nsrun -n 1 lmp -in in.lj -sf gpu\n": "lmp-af764a3c0182",
		"python3 train.py --model resnet50":                                 "train-9a36b446b303",
		"mpirun -np 2 ./gmx mdrun \\\n -s a.tpr\n":                          "gmx-c52b3b756e75",
		"singularity exec --nv img.sif python train.py":                     "img.sif-e94edb382edf",
	} {
		if a := Identify("", []byte(script), ""); a.Key != want {
			t.Errorf("%q: key %s, want %s", script, a.Key, want)
		}
	}
	if a := Identify("", []byte("singularity exec --nv img.sif python train.py"), ""); a.Name != "train" {
		t.Errorf("name %s, want train", a.Name)
	}
}

// What decides how much a job needs tells it from others: one that is taken for a small one shares by its figures.
func TestLookAlikesAreOthers(t *testing.T) {
	for _, pair := range [][2]string{
		{"echo 128 | ./solver", "echo 4096 | ./solver"},
		{"echo 128 > in\n./solver in", "echo 4096 > in\n./solver in"},
		{"echo start; python train.py --batch 8", "echo start; python train.py --batch 512"},
		{"date && python train.py", "date && python infer.py"},
		{"set -- 128\n./solver $1", "set -- 4096\n./solver $1"},
		{"set n = 128\n./solver -n $n", "set n = 4096\n./solver -n $n"},
		{"echo $(./solver 128)\n./a", "echo $(./solver 4096)\n./a"},
		{"echo $(date && ./solver 128)\n./a", "echo $(date && ./solver 4096)\n./a"},
		{"printf -v N 128\n./solver $N", "printf -v N 4096\n./solver $N"},
		{"set -e -- 128\n./solver $1", "set -e -- 4096\n./solver $1"},
		{"set -x 128\n./solver $1", "set -x 4096\n./solver $1"},
		{"cat >x.c <<'#END'\n#define N 128\n#END\n./run x.c", "cat >x.c <<'#END'\n#define N 4096\n#END\n./run x.c"},
		{"cat >x.c <<!\n#define N 128\n!\n./run x.c", "cat >x.c <<!\n#define N 4096\n!\n./run x.c"},
		{"./run <<EOF\n EOF\n#define N 128\nEOF", "./run <<EOF\n EOF\n#define N 4096\nEOF"},
		{"./run <<EOF\nx > 128\nEOF", "./run <<EOF\nx > 4096\nEOF"},
		{"cat >x.c <<'EOF'\n#define N 128\nEOF\n./run x.c", "cat >x.c <<'EOF'\n#define N 4096\nEOF\n./run x.c"},
		{"gnuplot <<EOF\nset samples 128\nEOF", "gnuplot <<EOF\nset samples 4096\nEOF"},
		{"lmp -sf gpu < in.lj", "lmp -sf gpu < in.eam_big"},
		{"pw.x < si8.scf.in", "pw.x < si512.scf.in"},
		{"./solver <<< 128", "./solver <<< 4096"},
		{"srun bash -c 'export BATCH=8; python train.py'", "srun bash -c 'export BATCH=512; python train.py'"},
		{"singularity exec --nv resnet.sif bash -c 'python t.py'", "singularity exec --nv gpt3.sif bash -c 'python t.py'"},
		{"srun -n 1 bash -c './a 5'", "srun -n 8 bash -c './a 5'"},
		{"bash -c './solver $1' _ 128", "bash -c './solver $1' _ 4096"},
		{"bash -c 'cd small; ./solver'", "bash -c 'cd huge; ./solver'"},
		{"vllm bench --output-len 128", "vllm bench --output-len 8192"},
		{"./fft --log-n 18", "./fft --log-n 26"},
		{"python t.py --model_name_or_path meta-llama/Llama-2-7b-hf", "python t.py --model_name_or_path meta-llama/Llama-2-70b-hf"},
		{"python t.py --model-name resnet18", "python t.py --model-name resnet152"},
		{"torchrun t.py --ckpt_dir llama-2-7b-chat/", "torchrun t.py --ckpt_dir llama-2-13b-chat/"},
		{"export MODEL_NAME=gpt2-124M\npython t.py", "export MODEL_NAME=gpt2-1558M\npython t.py"},
		{"cd water_24k\ngmx mdrun", "cd water_3072k\ngmx mdrun"},
	} {
		a, b := Identify("", []byte(pair[0]), ""), Identify("", []byte(pair[1]), "")
		if a.Key == b.Key || a.Family != "" && a.Family == b.Family && sizesOf(a) == sizesOf(b) {
			t.Errorf("%q and %q are one application: %s, %s, sizes %q", pair[0], pair[1], a.Key, a.Family, sizesOf(a))
		}
	}
	for _, pair := range [][2]string{ // and what changes nothing doesn't
		{"./a 5", "echo \"run 1 -> $(date)\"\nset -euo pipefail\n./a 5\nsleep 5\nprintf '%s; done\\n' x"},
		{"./a 5", "hostname\nset +x\n./a 5\necho `date` $SLURM_JOB_ID"},
	} {
		if a, b := Identify("", []byte(pair[0]), ""), Identify("", []byte(pair[1]), ""); a.Key != b.Key {
			t.Errorf("%q is another application than %q", pair[1], pair[0])
		}
	}
	for _, pair := range [][2]string{
		{"python t.py --run-name a1", "python t.py --run-name a2"},
		{"python t.py --name run1 --prefix p1", "python t.py --name run2 --prefix p2"},
		{"cd results-20260101\n./a 5", "cd results-20260102\n./a 5"},
		{"./a 5 --checkpoint 100", "./a 5 --checkpoint 200"},
	} {
		if a, b := Identify("", []byte(pair[0]), ""), Identify("", []byte(pair[1]), ""); a.Family != b.Family || sizesOf(a) != sizesOf(b) {
			t.Errorf("%q and %q are no relatives of one size", pair[0], pair[1])
		}
	}
}

func TestHostileScriptsTakeNoTime(t *testing.T) {
	big := maxScript + 100
	for name, s := range map[string]string{
		"folded":    strings.Repeat("a\\\n", big/3),
		"quotes":    strings.Repeat("'\"", big/2),
		"brackets":  strings.Repeat("$(", big/2),
		"backticks": strings.Repeat("`a ", big/3),
		"one line":  "./a.out " + strings.Repeat("1 ", big/2),
		"shells":    strings.Repeat("bash -c 'bash -c \"", big/18),
		"sruns":     strings.Repeat("srun -n 4 ", big/10),
		"NUL":       strings.Repeat("\x00\x01\xff", big/3),
		"lines":     strings.Repeat("./a.out 5\n", big/10),
	} {
		start := time.Now()
		a := Identify("", []byte(s), "")
		// This takes tens of ms; of the square of its length it would take minutes.
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s: %v", name, took)
		}
		if len(a.Sizes) > maxSizes || len(a.Family) > 64 {
			t.Errorf("%s: %d sizes, family %q", name, len(a.Sizes), a.Family)
		}
	}
}

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
