package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

//go:embed kernels.ptx
var kernelsPTX string

// cuda is as much of the driver's library as the kernels need, with the arguments of cuda.h and the names that the
// library exports. A context belongs to the thread that has made it: a user locks itself to its thread.
type cuda struct {
	Init           func(flags uint32) int32                                          `cu:"cuInit"`
	DriverVersion  func(to *int32) int32                                             `cu:"cuDriverGetVersion"`
	ErrorName      func(code int32, to **byte) int32                                 `cu:"cuGetErrorName"`
	DeviceCount    func(to *int32) int32                                             `cu:"cuDeviceGetCount"`
	DeviceGet      func(to *int32, ordinal int32) int32                              `cu:"cuDeviceGet"`
	DeviceUUID     func(to *[16]byte, device int32) int32                            `cu:"cuDeviceGetUuid"`
	Attribute      func(to *int32, attribute, device int32) int32                    `cu:"cuDeviceGetAttribute"`
	CtxCreate      func(to *uintptr, flags uint32, device int32) int32               `cu:"cuCtxCreate_v2"`
	Synchronize    func() int32                                                      `cu:"cuCtxSynchronize"`
	MemInfo        func(free, total *uint64) int32                                   `cu:"cuMemGetInfo_v2"`
	MemAlloc       func(to *uint64, bytes uint64) int32                              `cu:"cuMemAlloc_v2"`
	HostAlloc      func(to *uintptr, bytes uint64) int32                             `cu:"cuMemAllocHost_v2"`
	Memset         func(at uint64, value uint8, bytes uint64) int32                  `cu:"cuMemsetD8_v2"`
	ToHost         func(to unsafe.Pointer, from, bytes uint64) int32                 `cu:"cuMemcpyDtoH_v2"`
	ToHostAsync    func(to uintptr, from, bytes uint64, stream uintptr) int32        `cu:"cuMemcpyDtoHAsync_v2"`
	ToDeviceAsync  func(to uint64, from uintptr, bytes uint64, stream uintptr) int32 `cu:"cuMemcpyHtoDAsync_v2"`
	StreamCreate   func(to *uintptr, flags uint32) int32                             `cu:"cuStreamCreate"`
	ModuleLoad     func(to *uintptr, image *byte) int32                              `cu:"cuModuleLoadData"`
	ModuleFunction func(to *uintptr, module uintptr, name string) int32              `cu:"cuModuleGetFunction"`
	FuncAttribute  func(function uintptr, attribute, value int32) int32              `cu:"cuFuncSetAttribute"`
	Launch         func(
		function uintptr, gridX, gridY, gridZ, blockX, blockY, blockZ, shared uint32, stream uintptr, params,
		extra unsafe.Pointer,
	) int32 `cu:"cuLaunchKernel"`
}

// Numbers of cuda.h: CU_DEVICE_ATTRIBUTE_…, CU_FUNC_ATTRIBUTE_…, CU_STREAM_NON_BLOCKING.
const (
	multiprocessors   = 16
	computeMode       = 20
	threadsOfSM       = 39
	sharedOfSM        = 81
	sharedOfBlock     = 97 // that it may have if it asks for it
	dynamicShared     = 8
	streamNonBlocking = 1
)

// cudaError is a call that failed.
type cudaError struct {
	Call string `json:"call"`
	Code int32  `json:"code"`
	Name string `json:"name,omitempty"`
}

func (e *cudaError) Error() string { return fmt.Sprintf("%s: %d %s", e.Call, e.Code, e.Name) }

// check makes an error of what a call returned.
func (c *cuda) check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	e := &cudaError{Call: call, Code: code}
	var name *byte
	if c.ErrorName(code, &name) == 0 && name != nil {
		for p := unsafe.Pointer(name); *(*byte)(p) != 0; p = unsafe.Add(p, 1) { //nolint:gosec // a string of C
			e.Name += string(rune(*(*byte)(p)))
		}
	}
	return e
}

// libraryFolders are where borrowed machines and containers have the driver's libraries, if not where the loader looks.
var libraryFolders = []string{
	"/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu/nvidia/current",
	"/usr/lib64/nvidia",
}

// inFolders is the path of one of the driver's libraries in these folders, or its name, for the loader.
func inFolders(name string) string {
	for _, folder := range libraryFolders {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return filepath.Join(folder, name)
		}
	}
	return name
}

// openCUDA loads the driver's library.
func openCUDA() (*cuda, error) {
	const name, flags = "libcuda.so.1", purego.RTLD_NOW | purego.RTLD_GLOBAL
	lib, err := purego.Dlopen(name, flags)
	if err != nil {
		lib, err = purego.Dlopen(inFolders(name), flags)
	}
	if err != nil {
		return nil, err
	}
	c := new(cuda)
	for i := range reflect.TypeFor[cuda]().NumField() {
		name, to := symbol(i), reflect.ValueOf(c).Elem().Field(i)
		at, err := purego.Dlsym(lib, name)
		if err != nil {
			return nil, fmt.Errorf("libcuda has no %s: %w", name, err)
		}
		purego.RegisterFunc(to.Addr().Interface(), at)
	}
	return c, nil
}

// symbol is the name of the i-th function.
func symbol(i int) string { return reflect.TypeFor[cuda]().Field(i).Tag.Get("cu") }

// device is the first GPU that this process sees, with a context on it.
type device struct {
	*cuda
	ordinal     int32
	ctx, module uintptr
	sms         int
}

// openGPU makes a context on the first GPU and loads the kernels there. It puts what the driver says of the GPU into a.
func openGPU(a *answer) (*device, error) {
	c, err := openCUDA()
	if err != nil {
		return nil, err
	}
	d := &device{cuda: c}
	var count int32
	var free, total uint64
	for _, step := range []struct {
		call string
		do   func() int32
	}{
		{"cuDriverGetVersion", func() int32 { return c.DriverVersion(&a.CUDA) }},
		{"cuInit", func() int32 { return c.Init(0) }},
		{"cuDeviceGetCount", func() int32 { return c.DeviceCount(&count) }},
		{"cuDeviceGet", func() int32 { return c.DeviceGet(&d.ordinal, 0) }},
		{"cuCtxCreate", func() int32 { return c.CtxCreate(&d.ctx, 0, d.ordinal) }},
		{"cuDeviceGetAttribute", func() int32 { return c.Attribute(&a.SMs, multiprocessors, d.ordinal) }},
		{"cuModuleLoadData", d.load},
		{"cuMemGetInfo", func() int32 { return c.MemInfo(&free, &total) }},
	} {
		if err := c.check(step.call, step.do()); err != nil {
			return nil, err
		}
	}
	d.sms, a.UUID, a.Mode = int(a.SMs), d.uuid(), d.attribute(computeMode)
	a.FreeMiB, a.TotalMiB = float64(free)/(1<<20), float64(total)/(1<<20)
	return d, nil
}

// load loads the kernels. A driver that takes their PTX for the oldest cards no more gets it for newer ones.
func (d *device) load() (code int32) {
	for _, to := range []string{"6.4\n.target sm_50", "6.4\n.target sm_75", "7.8\n.target sm_90"} {
		image := append([]byte(strings.Replace(kernelsPTX, "6.4\n.target sm_50", to, 1)), 0)
		code = d.ModuleLoad(&d.module, &image[0])
		runtime.KeepAlive(image)
		if code == 0 {
			break
		}
	}
	return code
}

// attribute is a figure of the card's, 0 = not known.
func (d *device) attribute(which int32) int {
	var v int32
	if d.Attribute(&v, which, d.ordinal) != 0 {
		return 0
	}
	return int(v)
}

// uuid is the card's as nvidia-smi has it, "" = not known.
func (d *device) uuid() string {
	var u [16]byte
	if d.DeviceUUID(&u, d.ordinal) != 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// blocks is how many blocks of blockThreads all SMs hold at a time.
func (d *device) blocks() int { return d.sms * max(1, d.attribute(threadsOfSM)/blockThreads) }

func (d *device) function(name string) (f uintptr, err error) {
	return f, d.check("cuModuleGetFunction "+name, d.ModuleFunction(&f, d.module, name))
}

// alloc takes device memory and clears it.
func (d *device) alloc(bytes uint64) (at uint64, err error) {
	if err := d.check("cuMemAlloc", d.MemAlloc(&at, bytes)); err != nil {
		return 0, err
	}
	return at, d.check("cuMemsetD8", d.Memset(at, 0, bytes))
}

// launch runs a kernel that takes 64-bit arguments, and doesn't wait for its end.
func (d *device) launch(f uintptr, blocks, threads, shared int, args ...uint64) error {
	params := make([]unsafe.Pointer, len(args))
	for i := range args {
		params[i] = unsafe.Pointer(&args[i]) //nolint:gosec // CUDA reads it during the launch
	}
	first := unsafe.Pointer(unsafe.SliceData(params)) //nolint:gosec // the same
	//nolint:gosec // sizes of a launch
	code := d.Launch(f, uint32(blocks), 1, 1, uint32(threads), 1, 1, uint32(shared), 0, first, nil)
	runtime.KeepAlive(args)
	return d.check("cuLaunchKernel", code)
}

// wait waits for the end of all work.
func (d *device) wait() error { return d.check("cuCtxSynchronize", d.Synchronize()) }
