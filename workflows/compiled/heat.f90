! Heat in a plate, of which each rank has some lines: explicit finite differences.
!
! The plate is cold at its edges, except below, where the heater is. Temperatures go to the other
! modules of the group, and the heater and the particles in each cell come from them.
integer(c_int) function run(d) bind(C)
  use, intrinsic :: iso_c_binding
  use diel
  implicit none
  type(diel_copy), intent(inout) :: d
  real(c_double), allocatable, target :: T(:, :), particles(:, :), heater(:)
  real(c_double), allocatable :: around(:, :)
  real(c_double) :: conduction, warmth
  type(diel_boundary) :: temperature, load, power
  type(diel_array) :: section
  integer(c_int64_t) :: extent(2), steps, step
  integer :: nx, ny, unused

  conduction = 0.2d0 ! of the difference to a neighbour, in a step
  warmth = 0.01d0    ! of a particle, in a step
  steps = 50
  unused = diel_option(d, "conduction", conduction)
  unused = diel_option(d, "warmth", warmth)
  unused = diel_option(d, "steps", steps)

  ! How many lines are this rank's, the boundary knows; [ny, nx] in the workflow file.
  run = diel_boundary_open(d, "temperature", temperature)
  if (run == DIEL_DONE) run = diel_boundary_open(d, "particles", load)
  if (run == DIEL_DONE) run = diel_boundary_open(d, "heater", power)
  if (run == DIEL_DONE) run = diel_section(d, temperature, DIEL_OWNED, 0, section)
  if (run /= DIEL_DONE) return
  extent = diel_shape(section)
  nx = int(extent(1))
  ny = int(extent(2))
  allocate (T(0:nx + 1, 0:ny + 1), source=0d0) ! with a cell more on each side
  allocate (around(nx, ny), particles(nx, ny), heater(1))
  run = diel_bind(d, temperature, DIEL_OWNED, 0, T(1:nx, 1:ny))
  if (run == DIEL_DONE) run = diel_bind(d, load, DIEL_READS, 0, particles)
  if (run == DIEL_DONE) run = diel_bind(d, power, DIEL_READS, 0, heater)
  if (run /= DIEL_DONE) return

  do step = 1, steps
    run = diel_push(d, temperature)
    if (run == DIEL_DONE) run = exchange_lines(d)
    if (run == DIEL_DONE) run = diel_pull(d, load)
    if (run == DIEL_DONE) run = diel_pull(d, power)
    if (run /= DIEL_DONE) return
    if (d%rank == 0) T(1:nx, 0) = heater(1)
    around = (T(0:nx - 1, 1:ny) + T(2:nx + 1, 1:ny)) + (T(1:nx, 0:ny - 1) + T(1:nx, 2:ny + 1))
    T(1:nx, 1:ny) = (T(1:nx, 1:ny) + conduction * (around - 4d0 * T(1:nx, 1:ny))) &
      + warmth * particles
    if (d%rank == 0) unused = diel_progress(d, dble(step), dble(steps))
  end do
  around = T(1:nx, 1:ny)
  run = diel_send(d, "control", 0, 0, around, "temperature")

contains

  ! Get the neighbours' lines beside this rank's.
  integer(c_int) function exchange_lines(d) result(status)
    type(diel_copy), intent(inout) :: d
    logical :: has_below, has_above
    has_below = d%rank > 0
    has_above = d%rank < d%ranks - 1
    status = DIEL_DONE
    if (has_below) status = diel_send(d, "heat", 0, d%rank - 1, T(1:nx, 1), "down")
    if (has_above) status = max(status, diel_send(d, "heat", 0, d%rank + 1, T(1:nx, ny), "up"))
    if (has_below) status = max(status, diel_recv(d, T(1:nx, 0), "heat", 0, d%rank - 1, "up"))
    if (has_above) status = max(status, diel_recv(d, T(1:nx, ny + 1), "heat", 0, d%rank + 1, "down"))
  end function

end function
